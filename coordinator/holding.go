package coordinator

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// deletedVersion is the version that takes a config away (N76).
const deletedVersion = -1

// holding is what one agent holds of configs, and what it was offered. It is
// guarded by configs.mu.
type holding struct {
	want    *wantSet
	held    []heldConfig // by kind and name; never changed in place, only replaced
	left    []heldConfig // likewise: held before the agent registered, and not told of by then
	session *session     // caps and offers are of this link
	caps    uint64
	offers  []offer // that are not settled
	saving  bool    // a write of held is on its way
	unsaved bool    // held is not what is stored
}

// heldConfig is where one config stands on an agent, as the agent says.
type heldConfig struct {
	name    string
	reason  string
	version int32
	running int32
	kind    musterv1.Config_Kind
	status  musterv1.ConfigStatus_Status
	ours    bool // it was wanted of this agent once: it may be taken away
	sure    bool // the version is one of this store, not one of the same number from another
	stale   bool // told when it registered, and not since
}

// offer is a version that an agent was offered, or -1.
type offer struct {
	name    string
	version int32
	kind    musterv1.Config_Kind
	tries   uint8
	again   time.Time // not before
}

func compareHeld(a, b heldConfig) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), strings.Compare(a.name, b.name))
}

// sameReport reports whether an agent says the same.
func (h heldConfig) sameReport(o heldConfig) bool {
	o.ours, o.sure, o.stale = h.ours, h.sure, h.stale
	return h == o
}

// message is the config as operators see it.
func (h heldConfig) message(agent string, wanted int32) *musterv1.ConfigStatus {
	return &musterv1.ConfigStatus{Kind: h.kind, Name: h.name, Version: h.version, Status: h.status,
		RunningVersion: h.running, Reason: h.reason, AgentId: agent, WantedVersion: wanted}
}

// Bits that a stored row keeps in wanted_version.
const (
	rowOurs = 1 << iota
	rowSure
)

// row is the config as it is stored.
func (h heldConfig) row() *musterv1.ConfigStatus {
	m := h.message("", 0)
	if h.ours {
		m.WantedVersion |= rowOurs
	}
	if h.sure {
		m.WantedVersion |= rowSure
	}
	return m
}

// size is about how large the row of what is held is.
func (o *holding) size() (n int) {
	for _, h := range o.held {
		n += 40 + len(h.name) + len(h.reason)
	}
	return min(n, store.MaxValue)
}

// gone reports whether the agent has no file of it.
func (h heldConfig) gone() bool { return h.status == musterv1.ConfigStatus_DELETED }

// find returns what is held of that name.
func (o *holding) find(kind musterv1.Config_Kind, name string) (heldConfig, bool) {
	return findHeld(o.held, kind, name)
}

func findHeld(list []heldConfig, kind musterv1.Config_Kind, name string) (heldConfig, bool) {
	i, ok := slices.BinarySearchFunc(list, heldConfig{kind: kind, name: name}, compareHeld)
	if !ok {
		return heldConfig{}, false
	}
	return list[i], true
}

// replace takes what an agent says when it registers for what is held. What it
// does not tell of, for want of room, it may tell of later. It returns what is
// different.
func (o *holding) replace(held []heldConfig) (changed []heldConfig) {
	before := o.held
	o.held = o.claim(held)
	o.left = nil
	for _, h := range before {
		if _, ok := o.find(h.kind, h.name); !ok {
			o.left = append(o.left, h)
		}
	}
	for _, h := range o.held {
		if was, ok := findHeld(before, h.kind, h.name); !ok || !was.sameReport(h) {
			changed = append(changed, h)
		}
	}
	return changed
}

// claim marks those of held that were known to be ours before. A Register may have no room
// for reasons: they are kept.
func (o *holding) claim(held []heldConfig) []heldConfig {
	for i, h := range held {
		was, ok := o.find(h.kind, h.name)
		if !ok {
			continue
		}
		held[i].ours, held[i].sure = was.ours, was.sure && was.version == h.version
		if h.reason == "" && h.status == was.status && h.version == was.version {
			held[i].reason = was.reason
		}
	}
	return held
}

// put replaces what is held of a name.
func (o *holding) put(h heldConfig) {
	i, ok := slices.BinarySearchFunc(o.held, h, compareHeld)
	held := slices.Clone(o.held)
	if ok {
		held[i] = h
	} else {
		held = slices.Insert(held, i, h)
	}
	o.held = held
}

// offered returns the offer of that name which is not settled.
func (o *holding) offered(kind musterv1.Config_Kind, name string) *offer {
	for i := range o.offers {
		if o.offers[i].kind == kind && o.offers[i].name == name {
			return &o.offers[i]
		}
	}
	return nil
}

// takesConfigs reports whether an agent says that it takes configs of a kind (N60).
func takesConfigs(caps uint64, kind musterv1.Config_Kind) bool {
	if kind == musterv1.Config_INSTANCE {
		return caps&uint64(musterv1.AgentCapability_ACCEPTS_INSTANCE_CONFIGS) != 0
	}
	return caps&uint64(musterv1.AgentCapability_ACCEPTS_PIPELINE_CONFIGS) != 0
}

// standing is how a config stands that is wanted in a version.
type standing int

const (
	standsNot     standing = iota // it has to be offered
	standsUnsure                  // likewise: the number is right, but may be that of another store
	standsStarted                 // it is being applied
	standsRight
	standsFailed // it is not offered again
)

// standing tells how a wanted version stands. Any difference of version asks for
// an update, never only a greater one (N77).
func (o *holding) standing(kind musterv1.Config_Kind, name string, version int32) standing {
	h, ok := o.find(kind, name)
	if !ok || h.version != version {
		return standsNot
	}
	switch {
	case h.status == musterv1.ConfigStatus_APPLYING && !h.stale:
		return standsStarted
	case h.status == musterv1.ConfigStatus_APPLIED && h.running == version:
		return sureOr(standsRight, h)
	case h.status == musterv1.ConfigStatus_FAILED:
		return sureOr(standsFailed, h)
	}
	return standsNot
}

func sureOr(s standing, h heldConfig) standing {
	if !h.sure {
		return standsUnsure
	}
	return s
}
