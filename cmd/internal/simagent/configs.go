package simagent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// This file is the way of a config through an agent: onConfigOffer →
// onConfigContent, as often as it takes → decide → settle.

// Offered is a config that an agent was offered, with its whole content.
type Offered struct {
	Agent   string
	N       int // of the agent, counted from 0
	Kind    musterv1.Config_Kind
	Name    string
	Version int32 // -1: it shall go
	File    *musterv1.FileSpec
	Content []byte
}

// Answer is what an agent makes of a config. The zero value applies it.
type Answer struct {
	Takes time.Duration // until it is so (none)
	Fail  string        // FAILED for this reason; what ran before runs on
	Die   bool          // the agent is gone without a word …
	Back  time.Duration // … for so long, and then says that it FAILED (for ever)
}

const (
	deleted = -1       // the version that takes a config away
	maxSize = 16 << 20 // of content that is fetched
)

var errDied = errors.New("the agent dies of a config, as it was told to")

type configKey struct {
	kind musterv1.Config_Kind
	name string
}

// heldConfig is one config on one agent.
type heldConfig struct {
	status *musterv1.ConfigStatus
	offer  *musterv1.ConfigOffer  // that is being applied; nil: none
	had    *musterv1.ConfigStatus // before it
	got    []byte                 // of its content
	timer  *time.Timer
}

// ConfigOf tells where a config stands on agent n; nil: it was never offered.
func (f *Fleet) ConfigOf(n int, kind musterv1.Config_Kind, name string) *musterv1.ConfigStatus {
	a := f.agents[n]
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.configs[configKey{kind, name}]; h != nil {
		return proto.CloneOf(h.status)
	}
	return nil
}

// onConfigOffer begins to apply what differs from what the agent holds. The
// newest offer of a name counts.
func (a *agent) onConfigOffer(l *link, m *musterv1.ConfigOffer) error {
	a.fleet.tally.offers.Add(1)
	if a.fleet.cfg.OnConfig == nil {
		return nil // the agent did not say that it takes any
	}
	h := a.configLocked(configKey{m.Kind, m.Name})
	if h.status.Version == m.Version && h.status.Status != musterv1.ConfigStatus_FAILED {
		return nil // held already, or under way
	}
	h.drop()
	h.offer, h.had = m, h.status
	a.setConfigLocked(h, m.Version, musterv1.ConfigStatus_APPLYING, h.had.RunningVersion, "")
	if m.Inline || m.Version == deleted || m.Size == 0 {
		h.got = m.Content
		a.decideLaterLocked(h)
		return nil
	}
	l.push(&musterv1.FetchConfig{Kind: m.Kind, Name: m.Name, Version: m.Version})
	return nil
}

func (a *agent) configLocked(key configKey) *heldConfig {
	h := a.configs[key]
	if h == nil {
		h = &heldConfig{status: &musterv1.ConfigStatus{Kind: key.kind, Name: key.name}}
		if a.configs == nil {
			a.configs = map[configKey]*heldConfig{}
		}
		a.configs[key] = h
	}
	return h
}

// onConfigContent takes a piece of what is fetched.
func (a *agent) onConfigContent(l *link, m *musterv1.ConfigContent) error {
	h := a.configs[configKey{m.Kind, m.Name}]
	if h == nil || h.offer == nil || h.timer != nil || h.offer.Version != m.Version || int(m.Offset) != len(h.got) {
		return nil
	}
	a.fleet.tally.pieces.Add(1)
	switch {
	case m.Gone:
		h.status = h.had
		h.drop()
		return nil
	case len(m.Data) == 0 || len(h.got)+len(m.Data) > min(maxSize, int(h.offer.Size)):
		a.fleet.tally.fail("config_content")
		return nil
	}
	if h.got = append(h.got, m.Data...); len(h.got) < int(h.offer.Size) {
		l.push(&musterv1.FetchConfig{Kind: m.Kind, Name: m.Name, Version: m.Version, Offset: uint32(len(h.got))})
		return nil
	}
	a.decideLaterLocked(h)
	return nil
}

// after is time.AfterFunc, but for what is due at once: many such timers crash
// the race detector in a bubble (Go 1.26).
func after(d time.Duration, fn func()) *time.Timer {
	if d > 0 {
		return time.AfterFunc(d, fn)
	}
	go fn()
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// decideLaterLocked has the content judged outside of the agent's lock.
func (a *agent) decideLaterLocked(h *heldConfig) {
	offer := h.offer
	h.timer = after(0, func() { a.decide(h, offer) })
}

func (a *agent) decide(h *heldConfig, offer *musterv1.ConfigOffer) {
	content, ok := a.contentOf(h, offer)
	if !ok {
		return
	}
	answer := Answer{Fail: "the content is not what was offered"}
	if sum := sha256.Sum256(content); offer.Version == deleted || hex.EncodeToString(sum[:]) == offer.Sha256 {
		answer = a.fleet.cfg.OnConfig(Offered{
			Agent: a.id, N: a.n, Kind: offer.Kind, Name: offer.Name, Version: offer.Version, File: offer.File, Content: content,
		})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.offer == offer && !a.ended {
		h.timer = after(answer.Takes, func() { a.conclude(h, offer, answer) })
	}
}

// contentOf is that of an offer, if it still counts.
func (a *agent) contentOf(h *heldConfig, offer *musterv1.ConfigOffer) ([]byte, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return h.got, h.offer == offer && !a.ended
}

// conclude makes it so, unless a newer offer came.
func (a *agent) conclude(h *heldConfig, offer *musterv1.ConfigOffer, answer Answer) {
	if l := a.concludeOnce(h, offer, answer); l != nil {
		l.flush()
	}
}

func (a *agent) concludeOnce(h *heldConfig, offer *musterv1.ConfigOffer, answer Answer) *link {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.offer != offer || a.ended {
		return nil
	}
	running := h.had.RunningVersion
	h.drop()
	switch {
	case answer.Die:
		a.dieLocked(answer.Back)
		a.setConfigLocked(h, offer.Version, musterv1.ConfigStatus_FAILED, running, "the agent died while it applied it")
	case answer.Fail != "":
		a.fleet.tally.refused.Add(1)
		a.setConfigLocked(h, offer.Version, musterv1.ConfigStatus_FAILED, running, answer.Fail)
	case offer.Version == deleted:
		a.setConfigLocked(h, deleted, musterv1.ConfigStatus_DELETED, 0, "")
	default:
		a.fleet.tally.applied.Add(1)
		a.setConfigLocked(h, offer.Version, musterv1.ConfigStatus_APPLIED, offer.Version, "")
	}
	return a.link
}

// setConfigLocked says at once where a config stands. What is not heard is in
// the next Register.
func (a *agent) setConfigLocked(h *heldConfig, version int32, status musterv1.ConfigStatus_Status, running int32, reason string) {
	h.status = &musterv1.ConfigStatus{
		Kind: h.status.Kind, Name: h.status.Name, Version: version, Status: status, RunningVersion: running, Reason: reason,
	}
	if a.link != nil && a.registered {
		a.link.push(&musterv1.ConfigFeedback{Configs: []*musterv1.ConfigStatus{h.status}})
	}
}

// dieLocked is an end without a word: a broken link takes nothing any more.
func (a *agent) dieLocked(back time.Duration) {
	cause := errDied
	if back == 0 {
		a.fleet.tally.vanished.Add(1)
		a.ended, cause = true, errVanished
		a.stopTimersLocked()
	} else {
		a.holdOffLocked(back)
	}
	if a.link != nil {
		a.link.fail(cause)
	}
}

// forgetFetchesLocked gives up what the old link was to bring: the next offer
// brings it again.
func (a *agent) forgetFetchesLocked() {
	for _, h := range a.configs {
		if h.offer != nil && h.timer == nil {
			h.status = h.had
			h.drop()
		}
	}
}

// configsLocked is what Register tells of the configs.
func (a *agent) configsLocked() (all []*musterv1.ConfigStatus) {
	for _, h := range a.configs {
		if h.status.Version != 0 {
			all = append(all, h.status)
		}
	}
	return all
}

// drop ends what is being done.
func (h *heldConfig) drop() {
	if h.timer != nil {
		h.timer.Stop()
	}
	h.offer, h.got, h.timer = nil, nil, nil
}

func (a *agent) stopTimersLocked() {
	a.journal.stop()
	for _, h := range a.configs {
		h.drop()
	}
}
