package agentd

import (
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// heldConfig is one config of this agent. The applier's lock guards it; the
// record is changed only by who has made it busy.
type heldConfig struct {
	record  configRecord
	changed string // why what is in place is not ours any more; "": it is
	seen    fileStamp
	looking bool // somebody reads what is in place

	told     *musterv1.ConfigStatus // last; nil: nothing
	reported *musterv1.ConfigStatus // in the last Register

	waiting *offer // to be applied, the newest there is
	due     time.Time
	since   uint64 // when it came, among all
	busy    *offer // being applied
	fetch   *fetch // of its content; nil: none
	resumed bool   // what an earlier agent left is planned
}

// status is where the config stands. A retry of what failed is not told before
// it succeeds: until then nothing is different.
func (h *heldConfig) status() *musterv1.ConfigStatus {
	s := &musterv1.ConfigStatus{
		Kind: h.record.Kind, Name: h.record.Name,
		Status: h.record.Status, Version: h.record.Version, RunningVersion: h.running(), Reason: h.record.Reason,
	}
	switch {
	case h.waiting != nil && !h.waiting.again:
		s.Status, s.Version, s.Reason = musterv1.ConfigStatus_APPLYING, h.waiting.Version, ""
	case h.waiting == nil && h.busy != nil && !h.busy.again:
		s.Status, s.Version, s.Reason = musterv1.ConfigStatus_APPLYING, h.busy.Version, ""
	case h.changed != "" && s.Status == musterv1.ConfigStatus_APPLIED:
		s.Status, s.Reason = musterv1.ConfigStatus_UNSET, h.changed
	}
	return s
}

// running is the version that really is in place.
func (h *heldConfig) running() int32 {
	if h.record.Placed == nil || h.changed != "" {
		return 0
	}
	return h.record.Placed.Version
}

// ready says that what waits can be begun when it is due.
func (h *heldConfig) ready() bool { return h.waiting != nil && h.busy == nil && !h.looking }

// isNothing says that there is nothing to be told or remembered of the config.
func (h *heldConfig) isNothing() bool {
	return h.busy == nil && h.waiting == nil && h.record.Placed == nil && h.record.Status == musterv1.ConfigStatus_UNSET
}

// answer says what to do about an offer: nothing, or to apply it, at once or as
// the retry that it is.
func (h *heldConfig) answer(o *offer) (apply, retry bool) {
	r := &h.record
	switch {
	case h.busy != nil:
		return h.busy.reload || h.busy.fetchedOff(o) || !h.busy.content.same(&o.content), false
	case r.Last.same(&o.content):
		return true, true
	case o.Version == deletedVersion:
		return r.Status != musterv1.ConfigStatus_DELETED, false
	case h.changed != "" && r.Placed.same(&o.content):
		return true, true
	}
	return !h.holds(&o.content) || r.Status != musterv1.ConfigStatus_APPLIED, false
}

// holds says whether a version is in place, and its program knows.
func (h *heldConfig) holds(c *content) bool {
	return h.record.Placed.same(c) && h.changed == "" && !h.record.Stale
}

// Retries of one content come after 5 s, then after twice as long each time, up
// to 10 min; so there are at most 13 attempts in an hour. After an hour without
// one it begins anew.
const (
	firstRetry   = 5 * time.Second
	longestRetry = 10 * time.Minute
	quietTime    = time.Hour
)

// again is when content that was tried before may be tried next.
func (r *configRecord) again(first time.Duration, now time.Time) time.Time {
	if r.Tries == 0 || now.Sub(r.Tried) > quietTime {
		return now
	}
	wait := min(first<<min(r.Tries-1, 10), longestRetry)
	if r.Tried.After(now) { // the clock was set
		return now.Add(wait)
	}
	return r.Tried.Add(wait)
}

// try counts an attempt.
func (r *configRecord) try(c *content, now time.Time) {
	last := r.Last
	if last == nil {
		last = r.Placed
	}
	if !last.same(c) || now.Sub(r.Tried) > quietTime {
		r.Tries = 0
	}
	r.Tries, r.Tried = r.Tries+1, now
}
