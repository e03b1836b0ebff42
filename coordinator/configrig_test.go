package coordinator

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const takesAll = uint64(musterv1.AgentCapability_ACCEPTS_COMMANDS | musterv1.AgentCapability_ACCEPTS_PIPELINE_CONFIGS | musterv1.AgentCapability_ACCEPTS_INSTANCE_CONFIGS)

// wireName is a config as agents know it.
type wireName struct {
	kind musterv1.Config_Kind
	name string
}

func file(name string) wireName { return wireName{musterv1.Config_PIPELINE, name} }

var instance = wireName{musterv1.Config_INSTANCE, instanceName}

// taker is an agent that takes configs: it says APPLYING, fetches what is not
// inline, and says APPLIED. Its fields are guarded by peer.mu.
type taker struct {
	*peer
	deaf   bool                                // it answers no offer
	judge  func(*musterv1.ConfigOffer) string  // a reason to fail
	offers []*musterv1.ConfigOffer             // all that came
	under  map[wireName]*musterv1.ConfigOffer  // that is fetched
	parts  map[wireName][]byte                 // of it
	files  map[wireName][]byte                 // in place
	says   map[wireName]*musterv1.ConfigStatus // where each stands
	pieces int                                 // that came
	stall  chan struct{}                       // its reader waits for it
	gone   int                                 // answers that say so
}

func (r *rig) taker(id string) *taker {
	a := &taker{peer: r.peer(id), under: map[wireName]*musterv1.ConfigOffer{}, parts: map[wireName][]byte{},
		files: map[wireName][]byte{}, says: map[wireName]*musterv1.ConfigStatus{}}
	a.reg.Capabilities = takesAll
	a.more = func(mux *bus.Mux) {
		bus.Handle(mux, a.onOffer)
		bus.Handle(mux, a.onContent)
	}
	return a
}

// come joins with what it holds.
func (a *taker) come() *taker {
	a.reg.Configs = slices.Collect(maps.Values(a.says))
	a.join()
	settle()
	return a
}

// settle waits until offers that are due have been made and answered.
func settle() {
	time.Sleep(3 * offerDelay)
	synctest.Wait()
}

func (a *taker) onOffer(l *bus.Peer, _ *musterv1.Envelope, m *musterv1.ConfigOffer) error {
	if a.stall != nil {
		<-a.stall
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.offers = append(a.offers, m)
	if a.deaf {
		return nil
	}
	w := wireName{m.Kind, m.Name}
	a.sayLocked(l, w, m.Version, musterv1.ConfigStatus_APPLYING, "")
	if m.Inline || m.Version == deletedVersion {
		a.applyLocked(l, m, m.Content)
		return nil
	}
	a.under[w], a.parts[w] = m, nil
	return l.Send(&musterv1.FetchConfig{Kind: m.Kind, Name: m.Name, Version: m.Version})
}

func (a *taker) onContent(l *bus.Peer, _ *musterv1.Envelope, m *musterv1.ConfigContent) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := wireName{m.Kind, m.Name}
	offer := a.under[w]
	if m.Gone {
		a.gone++
		return nil
	}
	a.pieces++
	if offer == nil || offer.Version != m.Version || int(m.Offset) != len(a.parts[w]) {
		return nil
	}
	a.parts[w] = append(a.parts[w], m.Data...)
	if len(a.parts[w]) < int(m.Size) {
		return l.Send(&musterv1.FetchConfig{Kind: m.Kind, Name: m.Name, Version: m.Version, Offset: uint32(len(a.parts[w]))})
	}
	a.applyLocked(l, offer, a.parts[w])
	return nil
}

func (a *taker) applyLocked(l *bus.Peer, m *musterv1.ConfigOffer, content []byte) {
	w := wireName{m.Kind, m.Name}
	if m.Version == deletedVersion {
		delete(a.files, w)
		a.sayLocked(l, w, m.Version, musterv1.ConfigStatus_DELETED, "")
		return
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != m.Sha256 || len(content) != int(m.Size) {
		a.r.t.Errorf("agent %s: content of %s@%d is not what was offered", a.reg.AgentId, m.Name, m.Version)
	}
	if a.judge != nil {
		if why := a.judge(m); why != "" {
			a.sayLocked(l, w, m.Version, musterv1.ConfigStatus_FAILED, why)
			return
		}
	}
	a.files[w] = append([]byte{}, content...)
	a.sayLocked(l, w, m.Version, musterv1.ConfigStatus_APPLIED, "")
}

func (a *taker) sayLocked(l *bus.Peer, w wireName, version int32, status musterv1.ConfigStatus_Status, why string) {
	running := a.says[w].GetRunningVersion()
	switch status {
	case musterv1.ConfigStatus_APPLIED:
		running = version
	case musterv1.ConfigStatus_DELETED:
		running = 0
	}
	a.says[w] = &musterv1.ConfigStatus{Kind: w.kind, Name: w.name, Version: version, Status: status, RunningVersion: running, Reason: why}
	l.Send(&musterv1.ConfigFeedback{Configs: []*musterv1.ConfigStatus{proto.CloneOf(a.says[w])}})
}

// got returns the versions that were offered of a config, in their order.
func (a *taker) got(w wireName) (versions []int32) {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.offers {
		if m.Kind == w.kind && m.Name == w.name {
			versions = append(versions, m.Version)
		}
	}
	return versions
}

func (a *taker) lastOffer() *musterv1.ConfigOffer {
	a.r.t.Helper()
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.offers) == 0 {
		a.r.t.Fatalf("agent %s got no offer", a.reg.AgentId)
	}
	return a.offers[len(a.offers)-1]
}

func (a *taker) wantOffers(w wireName, versions ...int32) {
	a.r.t.Helper()
	if got := a.got(w); !slices.Equal(got, versions) {
		a.r.t.Fatalf("agent %s was offered %s in versions %v, want %v", a.reg.AgentId, w.name, got, versions)
	}
}

func (a *taker) wantFile(w wireName, content string) {
	a.r.t.Helper()
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if got, ok := a.files[w]; !ok || string(got) != content {
		a.r.t.Fatalf("agent %s holds %.80q as %s, want %.80q", a.reg.AgentId, got, w.name, content)
	}
}

func (a *taker) wantNoFile(w wireName) {
	a.r.t.Helper()
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if got, ok := a.files[w]; ok {
		a.r.t.Fatalf("agent %s holds %.80q as %s, want nothing", a.reg.AgentId, got, w.name)
	}
}

func (r *rig) configs() *configService { return &configService{c: r.c} }

func fleetWide(version int32) *musterv1.Binding {
	return &musterv1.Binding{Fleet: true, Version: version}
}

func forGroup(name string, version int32) *musterv1.Binding {
	return &musterv1.Binding{Group: name, Version: version}
}

func forAgent(id string, version int32) *musterv1.Binding {
	return &musterv1.Binding{Agent: id, Version: version}
}

// head makes a config without bindings.
func (r *rig) head(kind musterv1.Config_Kind, name string) {
	r.t.Helper()
	if _, err := r.configs().PutConfig(r.t.Context(), &musterv1.PutConfigRequest{Config: &musterv1.Config{Name: name, Kind: kind}}); err != nil {
		r.t.Fatal(err)
	}
}

// version adds a version of a config, and returns its number.
func (r *rig) version(name, content string) int32 {
	r.t.Helper()
	v, err := r.configs().CreateConfigVersion(r.t.Context(), &musterv1.CreateConfigVersionRequest{Config: name, Content: []byte(content)})
	if err != nil {
		r.t.Fatal(err)
	}
	return v.Version
}

// bind replaces a config's bindings.
func (r *rig) bind(name string, list ...*musterv1.Binding) {
	r.t.Helper()
	if _, err := r.configs().PutConfig(r.t.Context(), &musterv1.PutConfigRequest{Config: &musterv1.Config{Name: name, Bindings: list}}); err != nil {
		r.t.Fatal(err)
	}
	settle()
}

// pipeline makes a PIPELINE config with one version for the whole fleet.
func (r *rig) pipeline(name, content string) {
	r.t.Helper()
	r.head(musterv1.Config_PIPELINE, name)
	r.bind(name, fleetWide(r.version(name, content)))
}

func (r *rig) deleteConfig(name string) {
	r.t.Helper()
	if _, err := r.configs().DeleteConfig(r.t.Context(), &musterv1.DeleteConfigRequest{Name: name}); err != nil {
		r.t.Fatal(err)
	}
	settle()
}

var everyStatus = []musterv1.ConfigStatus_Status{musterv1.ConfigStatus_UNSET, musterv1.ConfigStatus_APPLYING, musterv1.ConfigStatus_APPLIED, musterv1.ConfigStatus_FAILED, musterv1.ConfigStatus_DELETED}

// statusOf is where a config stands on an agent, by ListConfigStatus.
func (r *rig) statusOf(config, agent string) *musterv1.ConfigStatus {
	r.t.Helper()
	synctest.Wait()
	resp, err := r.configs().ListConfigStatus(r.t.Context(), &musterv1.ListConfigStatusRequest{Config: config, PageSize: maxPage, Statuses: everyStatus})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, st := range resp.Statuses {
		if st.AgentId == agent {
			return st
		}
	}
	return nil
}

func (r *rig) wantConfig(config, agent string, status musterv1.ConfigStatus_Status, version, running int32) *musterv1.ConfigStatus {
	r.t.Helper()
	st := r.statusOf(config, agent)
	if st == nil || st.Status != status || st.Version != version || st.RunningVersion != running {
		r.t.Fatalf("config %s on %s: %v, want %s of version %d with %d running", config, agent, st, status, version, running)
	}
	return st
}

func (r *rig) agentConfigs(agent string) *musterv1.GetAgentConfigsResponse {
	r.t.Helper()
	synctest.Wait()
	resp, err := r.configs().GetAgentConfigs(r.t.Context(), &musterv1.GetAgentConfigsRequest{AgentId: agent})
	if err != nil {
		r.t.Fatal(err)
	}
	return resp
}
