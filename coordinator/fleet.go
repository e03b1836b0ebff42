package coordinator

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// fleet holds every known agent with its status and, while there is one, its
// session. An entry outlives the link; the session is there exactly as long as
// the agent is connected and registered.
type fleet struct {
	start time.Time // of this process; times below count from it, on the monotonic clock
	wall  func() time.Time

	mu     sync.RWMutex
	agents map[string]*agent
	sorted []string // ids, nil when it must be made again
	online int
}

// agent is one known agent. Its fields are guarded by fleet.mu, except
// the atomic ones.
type agent struct {
	id       string
	row      *musterv1.Agent // as it was last stored; never changed, only replaced
	status   musterv1.Agent_Status
	session  *session
	silence  *time.Timer // fires when it may have been silent for too long
	refused  string      // what the agent refused last, for a person
	refusal  time.Time
	left     time.Time // when its link was lost last
	parted   bool      // it was stopped in order, and has not come again
	holder   holder    // the process that is, or was last, this agent
	conflict conflict
	removed  bool          // it is not in the fleet any more
	came     allowance     // for registrations, on whatever link
	seq      atomic.Uint32 // highest journal position it has told
	unsaved  atomic.Bool   // seq is to be written down
	seen     atomic.Int64  // when its last message came: nanoseconds since fleet.start
}

// session is one link; it has no agent until it registers.
type session struct {
	id   string
	peer *bus.Peer
	late *time.Timer           // closes a link that does not register; nil: it has, or is gone
	who  atomic.Pointer[agent] // nil until registered

	tried      bool         // it has sent a Register; by its reader alone
	registers  allowance    // for registrations after the first
	restarts   allowance    // for output that was begun on it
	statuses   allowance    // for configs that changed
	saves      allowance    // of them
	writes     atomic.Int64 // that wait for the disk
	writeBytes atomic.Int64
	drain      drain

	mu      sync.Mutex
	seq     uint64               // of the last Register or Heartbeat
	outputs map[string]*progress // by command id
}

// registered returns the session's agent, or nil.
func (s *session) registered() *agent { return s.who.Load() }

func newFleet(now time.Time, wall func() time.Time) *fleet {
	return &fleet{start: now, wall: wall, agents: map[string]*agent{}}
}

func (f *fleet) since(now time.Time) int64 { return int64(now.Sub(f.start)) }

// at turns a time of the monotonic clock into one of the wall clock as it is set
// now.
func (f *fleet) at(since int64) time.Time {
	return f.wall().Add(time.Duration(since - f.since(time.Now()))).Round(0)
}

// sessionOf returns the session to send commands to an agent by, or nil: it is
// not connected, under maintenance, or does not take commands.
func (f *fleet) sessionOf(id string) *session {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if a := f.agents[id]; a != nil && a.reachable() {
		return a.session
	}
	return nil
}

// sessionsOf is sessionOf for many.
func (f *fleet) sessionsOf(ids map[string]struct{}) map[string]*session {
	out := make(map[string]*session, len(ids))
	f.mu.RLock()
	defer f.mu.RUnlock()
	for id := range ids {
		if a := f.agents[id]; a != nil && a.reachable() {
			out[id] = a.session
		}
	}
	return out
}

// reachable reports whether commands may be sent to the agent; the caller holds
// the fleet's lock.
func (a *agent) reachable() bool {
	return a.session != nil && !a.row.GetMaintenance() && takesCommands(a.row)
}

// linkOf returns the session that an agent is connected by, or nil.
func (f *fleet) linkOf(id string) *session {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if a := f.agents[id]; a != nil {
		return a.session
	}
	return nil
}

// rowOf returns a copy of an agent's stored row, or nil.
func (f *fleet) rowOf(id string) *musterv1.Agent {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if a := f.agents[id]; a != nil && a.row != nil {
		return proto.CloneOf(a.row)
	}
	return nil
}

// setMaintenance notes what is stored.
func (f *fleet) setMaintenance(id string, on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.agents[id]; a != nil && a.row != nil {
		a.row = proto.CloneOf(a.row)
		a.row.Maintenance = on
	}
}

// noteRefusal keeps what an agent refused last.
func (f *fleet) noteRefusal(a *agent, what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a.refused, a.refusal = cutText(what, 300), f.wall()
}

func (f *fleet) refusal(id string, q *musterv1.AgentQueue) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if a := f.agents[id]; a != nil && a.refused != "" {
		q.LastRefusal, q.LastRefusalTime = a.refused, timestamppb.New(a.refusal)
	}
}

func (f *fleet) size() int {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return len(f.agents)
}

// knows reports whether an agent ever registered with that id.
func (f *fleet) knows(id string) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.agents[id] != nil
}

// unknown returns those ids that no known agent has.
func (f *fleet) unknown(ids []string) (out []string) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, id := range ids {
		if f.agents[id] == nil {
			out = append(out, id)
		}
	}
	return out
}

// offline returns those ids whose agent is OFFLINE.
func (f *fleet) offline(ids []string) (out []string) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, id := range ids {
		if a := f.agents[id]; a != nil && a.status == musterv1.Agent_OFFLINE {
			out = append(out, id)
		}
	}
	return out
}

// anyRuns reports whether one of these agents has the command type. One that
// does not say which types it has may have any.
func (f *fleet) anyRuns(ids []string, typ string) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, id := range ids {
		if a := f.agents[id]; a != nil && a.row != nil && takesCommands(a.row) && (len(a.row.CommandTypes) == 0 || slices.Contains(a.row.CommandTypes, typ)) {
			return true
		}
	}
	return false
}

// ids returns all agent ids, sorted. The caller must not change the slice.
func (f *fleet) ids() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sorted == nil {
		f.sorted = make([]string, 0, len(f.agents))
		for id := range f.agents {
			f.sorted = append(f.sorted, id)
		}
		slices.Sort(f.sorted)
	}
	return f.sorted
}

// ensureLocked returns the entry for id, made if need be.
func (f *fleet) ensureLocked(id string) *agent {
	a := f.agents[id]
	if a == nil {
		a = &agent{id: id}
		f.agents[id] = a
		if n := len(f.sorted); n == len(f.agents)-1 && (n == 0 || f.sorted[n-1] < id) {
			f.sorted = append(f.sorted, id) // as when all are loaded: in order
		} else {
			f.sorted = nil
		}
	}
	return a
}

// view is the agent as REST shows it.
func (f *fleet) view(id string) *musterv1.Agent {
	f.mu.RLock()
	defer f.mu.RUnlock()
	a := f.agents[id]
	if a == nil || a.row == nil {
		return nil
	}
	return f.viewLocked(a)
}

// viewLocked shares with the row what is not of now, such as tags: events by the
// thousand are views. Nobody may change that.
func (f *fleet) viewLocked(a *agent) *musterv1.Agent {
	v := &musterv1.Agent{}
	row := a.row.ProtoReflect()
	row.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		v.ProtoReflect().Set(field, value)
		return true
	})
	v.ProtoReflect().SetUnknown(row.GetUnknown())
	v.Status, v.Left = a.status, a.parted
	if seen := a.seen.Load(); seen > 0 {
		v.LastSeen = timestamppb.New(f.at(seen))
	}
	if a.session != nil {
		v.Address = a.session.peer.Addr().String()
	}
	if a.conflict.fresh(time.Now()) {
		v.Conflict = a.conflict.shown
	}
	return v
}

func (f *fleet) setStatusLocked(a *agent, to musterv1.Agent_Status) bool {
	if a.status == to {
		return false
	}
	if a.status == musterv1.Agent_ONLINE {
		f.online--
	}
	if to == musterv1.Agent_ONLINE {
		f.online++
	}
	a.status = to
	return true
}

// stop ends all timers.
func (f *fleet) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.agents {
		a.stopTimersLocked()
	}
}

func (a *agent) stopTimersLocked() {
	if a.silence != nil {
		a.silence.Stop()
	}
	if d := a.conflict.deciding; d != nil {
		d.timer.Stop()
	}
}

// refusing splits ids into those whose agent does not take commands, and the
// rest.
func (f *fleet) refusing(ids []string) (refusing, rest []string) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	rest = ids
	for i, id := range ids {
		switch a := f.agents[id]; {
		case a != nil && !takesCommands(a.row):
			if refusing == nil {
				rest = slices.Clone(ids[:i])
			}
			refusing = append(refusing, id)
		case refusing != nil:
			rest = append(rest, id)
		}
	}
	return refusing, rest
}
