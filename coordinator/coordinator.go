package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Coordinator is the whole of it. Make one with New, give its callbacks to a
// bus.Mux with Register, serve operators with ServeGRPC, and Run it.
type Coordinator struct {
	cfg      Config
	store    store.Store
	log      *slog.Logger
	metrics  *metrics
	ids      *ids
	fleet    *fleet
	ledger   *ledger
	feed     *feed
	batch    *batcher
	dispatch *dispatcher
	acks     *acker
	quiet    *quietLog
	fresh    freshPacks
	ended    endedCommands
	tokens   *tokens
	keys     *keyring
	pulse    pulse
	journals journals
	kept     *retention
	groups   *groups
	configs  *configs
	rollouts *configRollouts
	wanted   *configFollower // of what agents shall hold
	from0    store.Rev       // the watch starts here
	deciding sync.Mutex      // held while a decision about a command is stored
}

// New makes a coordinator from what the store holds; the store must have been
// opened with Spaces. It reads every known agent and every open command, and
// starts nothing.
func New(ctx context.Context, s store.Store, cfg Config) (*Coordinator, error) {
	cfg = cfg.withDefaults()
	c := &Coordinator{cfg: cfg, store: s, log: cfg.Log, metrics: newMetrics(cfg.Metrics)}
	c.fleet = newFleet(time.Now(), cfg.Now)
	c.kept = newRetention(c)
	c.pulse.tick = pulseTick(cfg.OfflineAfter)
	c.keys = newKeyring()
	c.ledger = newLedger(cfg.InFlight)
	c.feed = newFeed(cfg.EventHistory, cfg.Now)
	c.batch = newBatcher(&packer{s, c.ledger, &c.fresh, c.log}, cfg.Backlog, cfg.BacklogBytes)
	c.acks = newAcker()
	c.quiet = newQuietLog()
	c.dispatch = newDispatcher(s, c.ledger, c.fleet, cfg, c.metrics)
	c.groups = newGroups(c)
	c.rollouts = newConfigRollouts(c)
	c.configs = newConfigs(c)
	c.groups.onChange = append(c.groups.onChange, c.rollouts.groupsChanged, func(agents []string) { c.configs.look.wake(agents...) })
	hooks := append([]configHook{c.groups.hook()}, c.configs.catalog.hooks(c.configs.look.wakeAll)...)
	c.wanted = newConfigFollower(c, append(hooks, c.rollouts.hook())...)
	if err := c.load(ctx); err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	return c, nil
}

// Register is the list of all that an agent can tell us.
func (c *Coordinator) Register(mux *bus.Mux) {
	for _, m := range []proto.Message{&musterv1.Register{}, &musterv1.Heartbeat{}, &musterv1.Target{},
		&musterv1.OutputChunk{}, &musterv1.Busy{}, &musterv1.Goodbye{}, &musterv1.ProbeAck{}, &musterv1.Nack{},
		&musterv1.ConfigFeedback{}, &musterv1.FetchConfig{}} {
		mux.Limit(m, maxBody)
	}
	mux.Up = c.onUp
	mux.Down = c.onDown
	bus.Handle(mux, c.onRegister)
	bus.Handle(mux, c.onHeartbeat)
	bus.Handle(mux, c.onTarget)
	bus.Handle(mux, c.onChunk)
	bus.Handle(mux, c.onBusy)
	bus.Handle(mux, c.onGoodbye)
	bus.Handle(mux, c.onProbeAck)
	bus.Handle(mux, c.onNack)
	bus.Handle(mux, c.onConfigFeedback)
	bus.Handle(mux, c.onFetchConfig)
}

// Run follows the store, stores what agents report and sends them what is
// queued, until ctx ends. The store must be closed after it.
func (c *Coordinator) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.batch.run(ctx) })
	g.Go(func() error { return c.dispatch.run(ctx) })
	g.Go(func() error { return c.acks.run(ctx) })
	g.Go(func() error { return c.followLoop(ctx) })
	g.Go(func() error { return c.pulseLoop(ctx) })
	g.Go(func() error { return c.tendLoop(ctx) })
	g.Go(func() error { return c.kept.run(ctx) })
	g.Go(func() error { return c.wanted.run(ctx) })
	g.Go(func() error { return c.groups.run(ctx) })
	g.Go(func() error { return c.configs.run(ctx) })
	g.Go(func() error { return c.rollouts.run(ctx) })
	err := g.Wait()
	c.ledger.stop()
	c.fleet.stop()
	return err
}
