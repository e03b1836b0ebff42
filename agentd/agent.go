package agentd

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Agent runs commands for a coordinator. New opens its data folder, Register
// puts its callbacks on the bus, Run does the work, Close gives the folder back.
type Agent struct {
	cfg     Config
	id      string
	runID   string
	startup time.Time
	log     *slog.Logger
	quiet   *slog.Logger // for what the coordinator says
	metrics *metrics

	lock      *os.File
	outputs   outputs
	journal   *journal
	damage    damage
	ledger    *ledger
	inherited []*held // what an earlier agent left, until resume
	outbox    *outbox
	executor  *executor
	session   *session
	plugins   *inventory
	applier   *applier
}

// New opens the data folder and reads the journal. It fails when another agent
// uses the folder, and says which folder that is.
func New(cfg Config) (*Agent, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	a, err := open(cfg)
	if err != nil {
		lock.Close()
		return nil, err
	}
	a.lock = lock
	return a, nil
}

func open(cfg Config) (*Agent, error) {
	root, err := configRoot(cfg.Dir, cfg.ConfigRoot)
	if err != nil {
		return nil, err
	}
	id, first, err := identity(cfg.Dir, cfg.ID)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		cfg: cfg, id: id, runID: rand.Text(), startup: time.Now(),
		log: cfg.Log.With("agent", id), metrics: newMetrics(cfg.Metrics),
	}
	if a.outputs, err = openOutputs(cfg.Dir); err != nil {
		return nil, err
	}
	a.journal = newJournal(cfg.Dir, cfg.window, a.log, a.metrics)
	a.ledger = newLedger(a.journal, cfg.Queue, cfg.Held)
	if a.damage, err = a.journal.open(!first, a.ledger.replay); err != nil {
		a.journal.close()
		return nil, err
	}
	a.inherited = a.ledger.inOrder(func(*held) bool { return true })
	if a.damage != "" {
		a.metrics.journalDamaged.Inc()
		a.log.Error("journal damaged", "dir", cfg.Dir, "what", string(a.damage))
	}
	a.quiet = quietly(a.log)
	a.outbox = newOutbox(a.outputs, a.log, a.metrics)
	a.executor = newExecutor(cfg.Parallel)
	a.executor.left, a.executor.start, a.executor.expire = a.left, a.start, a.expire
	if a.applier, err = newApplier(cfg, root, hooks{a.allowed(hooksAllowed), cfg.StopGrace}, a.log); err != nil {
		a.journal.close()
		return nil, err
	}
	a.session = newSession(a.describe, a.log)
	a.plugins = newInventory(plugin.Folder(cfg.PluginDir), a.id, a.log, a.session.changed)
	return a, nil
}

// ID is the agent's id.
func (a *Agent) ID() string { return a.id }

// Bind tells the agent who makes its connections, so that it can pass on what
// a coordinator says about coming back. Call it before Run.
func (a *Agent) Bind(d Dealer) { a.session.dealer = d }

// Register is the list of all that a coordinator can tell us.
func (a *Agent) Register(mux *bus.Mux) {
	mux.Up = func(p *bus.Peer) { a.session.up(peer{p}) }
	mux.Down = func(p *bus.Peer, err error) { a.onDown(peer{p}, err) }
	on(mux, a.onRegistered)
	on(mux, a.onHeartbeatAck)
	on(mux, a.onCommand)
	on(mux, a.onCancel)
	on(mux, a.onTargetAck)
	on(mux, a.onGoodbye)
	on(mux, a.onConfigOffer)
	on(mux, a.onConfigContent)
	bus.Handle(mux, func(p *bus.Peer, env *musterv1.Envelope, _ *musterv1.Probe) error { return a.onProbe(peer{p}, env) })
	bus.Handle(mux, func(p *bus.Peer, env *musterv1.Envelope, m *musterv1.Nack) error { return a.onNack(peer{p}, env, m) })
}

func on[M interface {
	*T
	proto.Message
}, T any](mux *bus.Mux, fn func(Link, M) error) {
	bus.Handle(mux, func(p *bus.Peer, _ *musterv1.Envelope, m M) error { return fn(peer{p}, m) })
}

// Run works until ctx ends. Then running programs get TERM, the stop grace,
// and KILL; their commands are INTERRUPTED, journaled, and told if the link is
// up. So the Dealer must run on until Run has returned:
//
//	linkCtx, hangUp := context.WithCancel(context.WithoutCancel(ctx))
//	g.Go(func() error { defer hangUp(); return agent.Run(ctx) })
//	g.Go(func() error { return dealer.Run(linkCtx) })
func (a *Agent) Run(ctx context.Context) error {
	a.resume()
	alive := context.WithoutCancel(ctx)
	sessionDone, stopSession := start(alive, a.session.run)
	journalDone, stopJournal := start(alive, a.journal.run)
	outboxDone, stopOutbox := start(alive, a.outbox.run)
	pluginsDone, stopPlugins := start(ctx, func(ctx context.Context) { a.plugins.run(ctx, a.cfg.look) })
	applierDone, stopApplier := start(ctx, a.applier.run)

	a.executor.run(ctx)

	stopApplier()
	<-applierDone
	stopPlugins()
	<-pluginsDone
	stopOutbox()
	<-outboxDone
	stopSession()
	<-sessionDone
	a.session.leave(lastWords)
	stopJournal()
	<-journalDone
	return nil
}

// start runs fn until it is stopped; done is closed when it has returned.
func start(ctx context.Context, fn func(context.Context)) (done <-chan struct{}, stop context.CancelFunc) {
	ctx, stop = context.WithCancel(ctx)
	ch := make(chan struct{})
	go func() {
		defer close(ch)
		fn(ctx)
	}()
	return ch, stop
}

// Close gives the data folder back. Call it when Run has returned, or instead
// of Run.
func (a *Agent) Close() error {
	a.journal.close()
	return a.lock.Close()
}

// describe is the agent's Register.
func (a *Agent) describe(link Link) *musterv1.Register {
	attrs := attributes(a.cfg.Version)
	attrs.Ip = localIP(link.Addr())
	if a.damage != "" {
		attrs.Extras["journal_damage"] = string(a.damage)
	} else if names := a.journal.asides(); names != "" {
		attrs.Extras["journal_damage"] = "set aside earlier: " + names
	}
	m := &musterv1.Register{
		AgentId:      a.id,
		RunId:        a.runID,
		AgentType:    a.cfg.Type,
		Attributes:   attrs,
		Tags:         a.cfg.Tags,
		StartupTime:  timestamp(a.startup),
		Capabilities: a.capabilities(),
		Journal:      a.journal.position(),
		Commands:     a.ledger.commands(),
	}
	m.CommandTypes, m.Plugins = a.types()
	configs := a.applier.report()
	m.Configs = configs
	m = fit(m)
	a.applier.owe(configs[len(m.Configs):])
	return m
}

const capabilities = musterv1.AgentCapability_ACCEPTS_COMMANDS | musterv1.AgentCapability_ANSWERS_PROBES |
	musterv1.AgentCapability_ACCEPTS_PIPELINE_CONFIGS | musterv1.AgentCapability_ACCEPTS_INSTANCE_CONFIGS

// capabilities are the bits of what this agent does (N52).
func (a *Agent) capabilities() uint64 {
	all := capabilities
	if a.allowed(hooksAllowed) {
		all |= musterv1.AgentCapability_RUNS_HOOKS
	}
	return uint64(all)
}

// fit makes a Register no longer than a coordinator takes. What plugins say of
// themselves can be left out; of commands that do not fit the coordinator asks
// again, or it is told as Targets; configs that do not fit are told as
// ConfigFeedback.
func fit(m *musterv1.Register) *musterv1.Register {
	if proto.Size(m) > maxRegister {
		m.Plugins = names(m.Plugins)
	}
	if proto.Size(m) > maxRegister {
		m.Configs = withoutReasons(m.Configs)
	}
	for proto.Size(m) > maxRegister && proto.Size(&musterv1.Register{Configs: m.Configs}) > maxRegister/2 {
		m.Configs = m.Configs[:len(m.Configs)*3/4]
	}
	for proto.Size(m) > maxRegister && len(m.Commands) > 0 {
		m.Commands = m.Commands[:len(m.Commands)*3/4]
	}
	return m
}

func (a *Agent) onDown(link Link, err error) {
	a.log.Info("link lost", "addr", link.Addr(), "err", err)
	a.outbox.gone(link)
	a.applier.gone(link)
	a.session.down(link)
}

func (a *Agent) onRegistered(link Link, m *musterv1.Registered) error {
	a.session.hear(link)
	link.Promote()
	a.settle(m.SettledIds)
	a.session.onRegistered(link, m)
	a.outbox.use(link)
	a.applier.use(link)
	a.quiet.Info("registered", "addr", link.Addr(), "session", m.SessionId)
	return nil
}

func (a *Agent) onHeartbeatAck(link Link, m *musterv1.HeartbeatAck) error {
	a.session.hear(link)
	a.session.onHeartbeatAck(link, m)
	return nil
}

func (a *Agent) onTargetAck(link Link, m *musterv1.TargetAck) error {
	a.session.hear(link)
	a.settle(m.CommandIds)
	return nil
}

func (a *Agent) onConfigOffer(link Link, m *musterv1.ConfigOffer) error {
	a.session.hear(link)
	return a.applier.onOffer(link, m)
}

func (a *Agent) onConfigContent(link Link, m *musterv1.ConfigContent) error {
	a.session.hear(link)
	a.applier.onContent(m)
	return nil
}

func (a *Agent) onGoodbye(link Link, m *musterv1.Goodbye) error {
	a.session.hear(link)
	a.session.onGoodbye(m)
	return nil
}

// onProbe says that somebody is here, so that a copy of this agent does not get
// its id.
func (a *Agent) onProbe(link Link, env *musterv1.Envelope) error {
	a.session.hear(link)
	if err := link.Reply(env, &musterv1.ProbeAck{}); err != nil {
		a.quiet.Warn("probe not answered", "addr", link.Addr(), "err", err)
	}
	return nil
}

func (a *Agent) onNack(link Link, env *musterv1.Envelope, m *musterv1.Nack) error {
	a.session.hear(link)
	a.quiet.Warn("refused by the coordinator", "type", m.Type, "reason", m.Reason, "detail", m.Detail, "field", m.Field)
	switch {
	case m.Type == targetType && m.Reason == musterv1.Nack_RETRY:
		a.outbox.refused(m.Field)
	case m.Type == feedbackType && m.Reason == musterv1.Nack_RETRY:
		a.applier.onRefused()
	case m.Type == targetType && env.InReplyTo != "" && (m.Reason == musterv1.Nack_INVALID || m.Reason == musterv1.Nack_MALFORMED):
		a.onRefusedReport(env.InReplyTo, m)
	default:
		a.session.onNack(link, m)
	}
	return nil
}
