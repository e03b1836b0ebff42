package coordinator

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	missedBeats   = 3    // then the agent is SUSPECT
	beatsPerSec   = 2000 // the interval told to agents keeps the fleet under this
	unregistered  = 30 * time.Second
	silenceJitter = 10 // percent that an agent's beats may be late by its own jitter
)

// interval is the heartbeat interval for a fleet of n agents.
func (c *Coordinator) interval(n int) time.Duration {
	return max(c.cfg.HeartbeatInterval, time.Duration(n)*time.Second/beatsPerSec)
}

// offlineAfter is the silence that makes an agent OFFLINE.
func (c *Coordinator) offlineAfter() time.Duration {
	iv := c.interval(c.fleet.size())
	return max(c.cfg.OfflineAfter, 3*iv+min(iv, 5*time.Second))
}

// suspectAfter is the silence that makes an ONLINE agent SUSPECT.
func (c *Coordinator) suspectAfter() time.Duration {
	iv := c.interval(c.fleet.size())
	return missedBeats*iv + iv*silenceJitter/100
}

// heard notes a sign of life; any message counts. It costs no lock and no write.
func (c *Coordinator) heard(a *agent) {
	a.seen.Store(c.fleet.since(time.Now()))
}

// watchSilenceLocked arranges for the next look at an agent's silence: one
// timer per agent, which a beat does not touch. fleet.mu is held.
func (c *Coordinator) watchSilenceLocked(a *agent) {
	limit := c.cfg.OfflineAfter
	switch a.status {
	case musterv1.Agent_ONLINE:
		limit = missedBeats * c.cfg.HeartbeatInterval
	case musterv1.Agent_OFFLINE:
		if limit = c.cfg.ForgetAfter; limit <= 0 {
			return
		}
	}
	c.lookAgainLocked(a, limit)
}

func (c *Coordinator) lookAgainLocked(a *agent, after time.Duration) {
	after = max(after, 10*time.Millisecond)
	if a.silence == nil {
		a.silence = time.AfterFunc(after, func() { c.onSilence(a) })
	} else {
		a.silence.Reset(after)
	}
}

// onSilence decides, when an agent may have been silent for too long.
func (c *Coordinator) onSilence(a *agent) {
	c.notePause()
	suspect, offline := c.suspectAfter(), c.offlineAfter()
	c.fleet.mu.Lock()
	if a.removed {
		c.fleet.mu.Unlock()
		return
	}
	silent := time.Duration(c.fleet.since(time.Now()) - a.seen.Load())
	gone, old := false, false
	switch {
	case a.status == musterv1.Agent_ONLINE && silent >= suspect:
		c.changeStatusLocked(a, musterv1.Agent_SUSPECT)
		c.lookAgainLocked(a, offline-silent)
	case a.status == musterv1.Agent_ONLINE:
		c.lookAgainLocked(a, suspect-silent)
	case a.status == musterv1.Agent_SUSPECT && silent >= offline:
		gone = true
		c.giveUpLocked(a)
		c.changeStatusLocked(a, musterv1.Agent_OFFLINE)
		c.watchSilenceLocked(a)
	case a.status == musterv1.Agent_SUSPECT:
		c.lookAgainLocked(a, offline-silent)
	case silent >= c.cfg.ForgetAfter:
		old = true
		c.lookAgainLocked(a, c.expiryLook()) // if it is not forgotten now
	default:
		c.lookAgainLocked(a, c.cfg.ForgetAfter-silent)
	}
	c.fleet.mu.Unlock()
	if gone {
		c.wentOffline(a)
	}
	if old {
		c.expire(a)
	}
}

// giveUpLocked closes the link of an agent that says nothing on it any more, so
// that its descriptor is free: the other end may be gone without a word.
func (c *Coordinator) giveUpLocked(a *agent) {
	if a.session == nil {
		return
	}
	a.session.peer.Close(errSilent)
	a.session, a.left = nil, time.Now()
}

// wentOffline does what follows OFFLINE, where CANCEL is the rule of the fleet
// (N17): what was never sent to the agent does not wait for it.
func (c *Coordinator) wentOffline(a *agent) {
	if c.cfg.CancelOffline {
		c.settle(func() []ref { return c.ledger.claimWaiting(a.id) }, musterv1.Target_CANCELLED, agentOffline)
	}
}

// agentOffline is why a target is CANCELLED that nobody has cancelled.
const agentOffline = "agent offline"

// changeStatusLocked is the one place where a status changes: it tells the
// event stream and writes last_seen. fleet.mu is held.
func (c *Coordinator) changeStatusLocked(a *agent, to musterv1.Agent_Status) {
	if a.removed || !c.fleet.setStatusLocked(a, to) {
		return
	}
	c.groups.touchStatus(a.id)
	v := c.fleet.viewLocked(a)
	c.feed.publish(&musterv1.Event{Kind: "agent", Agent: v})
	c.log.Info("agent status", "agent", a.id, "status", to.String())
	row := proto.CloneOf(v)
	row.Journal = proto.CloneOf(a.row.Journal)
	if row.Journal != nil {
		row.Journal.Seq = max(row.Journal.Seq, a.seq.Load())
	}
	row.Address, row.Conflict = "", nil
	// Not stored is no harm: the status in memory is right, and the next
	// transition writes again.
	w := &write{ops: fixed(putAgent(row)), size: proto.Size(row), done: func(_ []bool, err error) {
		if err != nil {
			c.warn("agent status not stored", "agent", row.Id, "status", to.String(), "err", err)
		}
	}}
	if err := c.batch.add(w); err != nil {
		c.metrics.dropped("last_seen")
	}
}

func putAgent(row *musterv1.Agent) store.Op {
	return store.Op{Kind: store.Put, Space: spaceFleet, Key: agentKey(row.Id), Value: encode(row)}
}

// notePause looks for a pause of this process before anybody's silence is
// judged: then everybody's silence starts now, for nobody could have been heard.
func (c *Coordinator) notePause() {
	c.pulse.mu.Lock()
	defer c.pulse.mu.Unlock() // nobody judges before the grace is given
	if !c.pulse.paused(c.cfg.Now(), time.Now()) {
		return
	}
	now := c.fleet.since(time.Now())
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	for _, a := range c.fleet.agents {
		if a.status != musterv1.Agent_OFFLINE {
			a.seen.Store(now)
		}
	}
	c.log.Warn("this process was paused; every agent gets a full grace")
}

// adopt takes an agent from the store at start: whoever was not OFFLINE is
// SUSPECT with a full grace, so that a restart alone marks nobody offline.
func (c *Coordinator) adopt(row *musterv1.Agent) {
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	a := c.fleet.ensureLocked(row.Id)
	a.row = row
	a.seq.Store(row.GetJournal().GetSeq())
	a.status = musterv1.Agent_SUSPECT
	if row.Status == musterv1.Agent_OFFLINE {
		a.status, a.parted = row.Status, row.Left
		if row.LastSeen != nil {
			a.seen.Store(min(0, -int64(c.cfg.Now().Sub(row.LastSeen.AsTime()))))
		}
		if c.cfg.ForgetAfter > 0 {
			c.lookAgainLocked(a, c.expiryLook()) // the wall clock may be wrong right after a start
		}
		return
	}
	c.watchSilenceLocked(a)
}

// pulse notices that the process was paused (SIGSTOP, a suspended machine).
type pulse struct {
	tick time.Duration

	mu         sync.Mutex
	wall, mono time.Time // of the last look
}

// paused reports, once, that more than two ticks are missing. It compares wall
// times, which go on while a machine sleeps, and the times of the monotonic clock,
// which nobody sets; a wall clock that was set ahead only gives a grace. p.mu is
// held.
func (p *pulse) paused(wall, mono time.Time) bool {
	first, limit := p.wall.IsZero(), 2*p.tick+p.tick/2
	missing := max(wall.Round(0).Sub(p.wall), mono.Sub(p.mono))
	p.wall, p.mono = wall.Round(0), mono
	return !first && missing > limit
}

// pulseTick is long enough that a busy machine is no pause, and short enough
// that one is noticed before it takes anybody offline.
func pulseTick(offlineAfter time.Duration) time.Duration {
	return min(max(offlineAfter/10, 100*time.Millisecond), 3*time.Second)
}

func (c *Coordinator) pulseLoop(ctx context.Context) error {
	t := time.NewTicker(c.pulse.tick)
	defer t.Stop()
	for {
		c.notePause()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// tendLoop does once a second what is due by the second.
func (c *Coordinator) tendLoop(ctx context.Context) error {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			c.flushJournals()
			c.lookForVanished()
			c.goOnAll()
		case <-ctx.Done():
			return nil
		}
	}
}

// nowStamp is the time for a row that is about to be stored.
func (c *Coordinator) nowStamp() *timestamppb.Timestamp { return timestamppb.New(c.cfg.Now()) }
