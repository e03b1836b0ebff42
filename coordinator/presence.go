package coordinator

import (
	"context"
	"sync/atomic"
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
		return
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
	now := time.Now()
	if c.pulse.paused(now) {
		c.grace(now)
	}
	suspect, offline := c.suspectAfter(), c.offlineAfter()
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	silent := time.Duration(c.fleet.since(now) - a.seen.Load())
	switch {
	case a.status == musterv1.Agent_ONLINE && silent >= suspect:
		c.changeStatusLocked(a, musterv1.Agent_SUSPECT)
		c.lookAgainLocked(a, offline-silent)
	case a.status == musterv1.Agent_ONLINE:
		c.lookAgainLocked(a, suspect-silent)
	case a.status == musterv1.Agent_SUSPECT && silent >= offline:
		c.changeStatusLocked(a, musterv1.Agent_OFFLINE)
	case a.status == musterv1.Agent_SUSPECT:
		c.lookAgainLocked(a, offline-silent)
	}
}

// changeStatusLocked is the one place where a status changes: it tells the
// event stream and writes last_seen. fleet.mu is held.
func (c *Coordinator) changeStatusLocked(a *agent, to musterv1.Agent_Status) {
	if !c.fleet.setStatusLocked(a, to) {
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
	row.Address = ""
	// Not stored is no harm: the status in memory is right, and the next
	// transition writes again.
	if err := c.batch.add(&write{ops: fixed(putAgent(row)), size: proto.Size(row)}); err != nil {
		c.metrics.dropped("last_seen")
	}
}

func putAgent(row *musterv1.Agent) store.Op {
	return store.Op{Kind: store.Put, Space: spaceFleet, Key: agentKey(row.Id), Value: encode(row)}
}

// grace makes everybody's silence start now: after a start, and after a pause
// of this process, nobody could have been heard.
func (c *Coordinator) grace(now time.Time) {
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	for _, a := range c.fleet.agents {
		if a.status != musterv1.Agent_OFFLINE {
			a.seen.Store(c.fleet.since(now))
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
		a.status = musterv1.Agent_OFFLINE
	}
	c.watchSilenceLocked(a)
}

// pulse notices that the process was paused (SIGSTOP, a suspended machine).
type pulse struct {
	tick time.Duration
	last atomic.Int64
}

func (p *pulse) beat(now time.Time) { p.last.Store(now.UnixNano()) }

// paused reports, once, that more than two ticks are missing. It compares wall
// times, which go on while a machine sleeps; a clock that was set ahead only
// gives a grace.
func (p *pulse) paused(now time.Time) bool {
	last := p.last.Swap(now.UnixNano())
	return last != 0 && now.UnixNano()-last > int64(2*p.tick+p.tick/2)
}

// pulseTick is long enough that a busy machine is no pause, and short enough
// that one is noticed before it takes anybody offline.
func pulseTick(offlineAfter time.Duration) time.Duration {
	return min(max(offlineAfter/10, 100*time.Millisecond), 3*time.Second)
}

func (c *Coordinator) pulseLoop(ctx context.Context) error {
	t := time.NewTicker(c.pulse.tick)
	defer t.Stop()
	c.pulse.beat(time.Now())
	for {
		select {
		case <-t.C:
			if now := time.Now(); c.pulse.paused(now) {
				c.grace(now)
			}
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
func (c *Coordinator) nowStamp() *timestamppb.Timestamp { return timestamppb.New(time.Now()) }
