package agentd

import (
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// statusHold is how long a status waits before it is sent. Most programs end
// sooner: then the coordinator reads one Target of the command, and not three.
const statusHold = 20 * time.Millisecond

// statuses are Targets that are not final and wait to be sent, one of each
// command: a later state takes the place of an earlier one. Who uses them holds
// the outbox's lock.
type statuses struct {
	waiting map[string]*status
	order   []*status // soonest due first; some wait no more
}

type status struct {
	target *musterv1.Target
	due    time.Time
}

// put takes a status, and says whether no other one waits.
func (s *statuses) put(t *musterv1.Target) (alone bool) {
	if w := s.waiting[t.CommandId]; w != nil {
		if t.State >= w.target.State {
			w.target = t
		}
		return false
	}
	if s.waiting == nil {
		s.waiting = map[string]*status{}
	}
	w := &status{target: t, due: time.Now().Add(statusHold)}
	alone = s.next() == nil
	s.waiting[t.CommandId] = w
	s.order = append(s.order, w)
	return alone
}

// next is what is due next, nil if nothing waits.
func (s *statuses) next() *status {
	for len(s.order) > 0 {
		if w := s.order[0]; s.waiting[w.target.CommandId] == w {
			return w
		}
		s.order[0] = nil
		s.order = s.order[1:]
	}
	return nil
}

// drop takes away what waits of a command.
func (s *statuses) drop(id string) { delete(s.waiting, id) }

// sent takes away t, if nothing has taken its place.
func (s *statuses) sent(t *musterv1.Target) {
	if w := s.waiting[t.CommandId]; w != nil && w.target == t {
		s.drop(t.CommandId)
	}
}

// status is the one to be sent now, nil if none is due.
func (d *delivery) status() *musterv1.Target {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.statuses.next()
	if s == nil || !d.ending && s.due.After(time.Now()) {
		return nil
	}
	return s.target
}

func (d *delivery) statusSent(t *musterv1.Target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.statuses.sent(t)
}

// statusDue is when a status is to be sent next, the zero time if none waits.
func (d *delivery) statusDue() (due time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.statuses.next(); s != nil {
		due = s.due
	}
	return due
}
