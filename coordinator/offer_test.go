package coordinator

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	unset    = musterv1.ConfigStatus_UNSET
	applying = musterv1.ConfigStatus_APPLYING
	applied  = musterv1.ConfigStatus_APPLIED
	failed   = musterv1.ConfigStatus_FAILED
	deleted  = musterv1.ConfigStatus_DELETED
)

// N64, N72, N75: name and version, the content inline, and the status at once.
func TestOfferReachesAgentAndItsStatusComesBack(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a").come()
		r.pipeline("nginx", "v1")
		a.wantFile(file("nginx"), "v1")
		m := a.lastOffer()
		if m.Name != "nginx" || m.Version != 1 || !m.Inline || m.File.GetPath() != "nginx" {
			t.Errorf("offer %v", m)
		}
		r.wantConfig("nginx", "a", applied, 1, 1)
		cfg, err := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: "nginx"})
		if err != nil || !proto.Equal(cfg.Counts, &musterv1.ConfigCounts{Total: 1, Applied: 1}) {
			t.Errorf("counts %v, %v", cfg.GetCounts(), err)
		}
		a.wantOffers(file("nginx"), 1)
	})
}

// N77: any difference is an update, also to a smaller number. N76: -1 deletes.
func TestAnyDifferenceOfVersionIsOffered(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a").come()
		r.pipeline("app", "one")
		r.bind("app", fleetWide(r.version("app", "two")))
		r.bind("app", fleetWide(1))
		a.wantOffers(file("app"), 1, 2, 1)
		a.wantFile(file("app"), "one")
		r.bind("app")
		a.wantOffers(file("app"), 1, 2, 1, deletedVersion)
		a.wantNoFile(file("app"))
		r.wantConfig("app", "a", deleted, deletedVersion, 0)
	})
}

// N60: an agent that does not say that it takes a kind is offered none of it.
func TestOnlyWhatAnAgentTakesIsOffered(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.taker("a"), r.taker("b")
		a.reg.Capabilities = uint64(musterv1.AgentCapability_ACCEPTS_PIPELINE_CONFIGS)
		b.reg.Capabilities = uint64(musterv1.AgentCapability_ACCEPTS_INSTANCE_CONFIGS)
		a.come()
		b.come()
		r.pipeline("app", "one")
		r.head(musterv1.Config_INSTANCE, "base")
		r.bind("base", fleetWide(r.version("base", `{"x":1}`)))
		a.wantOffers(file("app"), 1)
		a.wantOffers(instance)
		b.wantOffers(file("app"))
		if n := len(b.got(instance)); n != 1 {
			t.Errorf("%d offers of the instance document, want 1", n)
		}
		if st := r.statusOf("app", "b"); st.Status != unset || st.WantedVersion != 1 {
			t.Errorf("on b: %v", st)
		}
	})
}

// N73, N75: what is large is fetched in pieces, by agents that are offered it.
func TestLargeContentIsFetched(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a").come()
		big := strings.Repeat("0123456789abcde\n", 60_000) // 960,000 bytes
		r.pipeline("big", big)
		settle()
		a.wantFile(file("big"), big)
		if m := a.lastOffer(); m.Inline || len(m.Content) > 0 {
			t.Errorf("offered with %d bytes inline", len(m.Content))
		}
		b := r.taker("b")
		b.reg.Capabilities = 0
		b.come()
		b.say(&musterv1.FetchConfig{Kind: musterv1.Config_PIPELINE, Name: "big", Version: 2})
		b.say(&musterv1.FetchConfig{Kind: musterv1.Config_PIPELINE, Name: "none", Version: 1})
		if b.gone != 2 {
			t.Errorf("%d answers that it is gone, want 2", b.gone)
		}
	})
}

// N58: what a third party puts beside a request for content comes back with it.
func TestContentComesInTheEnvelopeOfItsRequest(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a")
		answers := make(chan *musterv1.Envelope, 10)
		a.more = func(mux *bus.Mux) {
			bus.Handle(mux, a.onOffer)
			bus.Handle(mux, func(_ *bus.Peer, env *musterv1.Envelope, m *musterv1.ConfigContent) error {
				if len(m.Data) != maxPiece || m.Gone {
					t.Errorf("%d bytes came, gone %v", len(m.Data), m.Gone)
				}
				answers <- env
				return nil
			})
		}
		a.come()
		r.pipeline("big", strings.Repeat("x", maxPiece+1)) // it asks without an envelope, too
		if env := <-answers; env.InReplyTo != "" || len(env.Opaque) > 0 {
			t.Errorf("answered in %v", env)
		}
		for range 2 {
			ask(t, a.current(), "theirs", &musterv1.FetchConfig{Kind: musterv1.Config_PIPELINE, Name: "big", Version: 1})
			if env := <-answers; env.InReplyTo != "q" || string(env.Opaque) != "theirs" {
				t.Errorf("answered in %v", env)
			}
		}
		ask(t, a.current(), strings.Repeat("o", maxFetchEnvelope), &musterv1.FetchConfig{Kind: musterv1.Config_PIPELINE, Name: "big", Version: 1})
		if n := a.lastNack(); n.Reason != musterv1.Nack_INVALID {
			t.Errorf("told %v", n)
		}
	})
}

func TestOfferWithoutAnswerIsMadeAgainLater(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a")
		a.deaf = true
		a.come()
		r.pipeline("app", "one")
		a.wantOffers(file("app"), 1)
		time.Sleep(offerAgain - time.Second)
		a.wantOffers(file("app"), 1)
		time.Sleep(3 * time.Second)
		a.wantOffers(file("app"), 1, 1)
		time.Sleep(offerAgain)
		a.wantOffers(file("app"), 1, 1) // the second time it waits twice as long
		time.Sleep(2 * offerAgain)
		a.wantOffers(file("app"), 1, 1, 1)
	})
}

// P36: a version that failed is not offered again until another is wanted, or
// the agent says that it does not know of it.
func TestFailedVersionIsNotOfferedAgain(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a").come()
		r.pipeline("app", "good")
		a.judge = func(m *musterv1.ConfigOffer) string { return map[int32]string{2: "no"}[m.Version] }
		r.bind("app", fleetWide(r.version("app", "bad")))
		st := r.wantConfig("app", "a", failed, 2, 1)
		if st.Reason != "no" || st.WantedVersion != 2 {
			t.Errorf("status %v", st)
		}
		time.Sleep(time.Hour)
		a.wantOffers(file("app"), 1, 2)
		a.leave()
		a.come()
		a.wantOffers(file("app"), 1, 2)
		r.bind("app", fleetWide(1))
		a.wantOffers(file("app"), 1, 2, 1)
		r.wantConfig("app", "a", applied, 1, 1)
		r.bind("app", fleetWide(2))
		a.wantOffers(file("app"), 1, 2, 1, 2)
		a.leave()
		delete(a.says, file("app"))
		a.come()
		a.wantOffers(file("app"), 1, 2, 1, 2, 2)
	})
}

// C091: of many versions in a row the agent ends with the newest, and going back
// is a change like any other.
func TestC091QuickVersionsEndWithTheNewest(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a").come()
		r.head(musterv1.Config_PIPELINE, "app")
		for range 20 {
			n := r.version("app", strings.Repeat("x", 10))
			_, err := r.configs().PutConfig(t.Context(), &musterv1.PutConfigRequest{Config: &musterv1.Config{Name: "app", Bindings: []*musterv1.Binding{fleetWide(n)}}})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		settle()
		got := a.got(file("app"))
		if len(got) > 5 || got[len(got)-1] != 20 {
			t.Errorf("offered %v, want few and 20 at last", got)
		}
		r.wantConfig("app", "a", applied, 20, 20)
		r.bind("app", fleetWide(5))
		r.wantConfig("app", "a", applied, 5, 5)
	})
}

func TestNothingNewUnderMaintenance(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a").come()
		s := &agentService{c: r.c}
		for _, on := range []bool{true, false} {
			if _, err := s.SetMaintenance(t.Context(), &musterv1.SetMaintenanceRequest{Id: "a", Maintenance: on}); err != nil {
				t.Fatal(err)
			}
			if on {
				r.pipeline("app", "one")
				a.wantOffers(file("app"))
			}
		}
		settle()
		a.wantOffers(file("app"), 1)
	})
}

// What does not fit into an agent's queue is sent as soon as that has drained,
// although the agent says nothing.
func TestOffersAndContentWaitForTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.link.QueueBytes = 100 << 10
		r.link.WriteStall = time.Hour
		r.start()
		a := r.taker("a")
		a.deaf, a.stall = true, make(chan struct{})
		a.come()
		const n = 30
		r.pipeline("c", strings.Repeat("0123456789abcdef", 64<<10))
		for i := range n {
			a.say(&musterv1.FetchConfig{Kind: musterv1.Config_PIPELINE, Name: "c", Version: 1})
			r.head(musterv1.Config_PIPELINE, fmt.Sprint("c", i))
			r.bind(fmt.Sprint("c", i), fleetWide(r.version(fmt.Sprint("c", i), strings.Repeat("x", 60<<10))))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := len(a.offers); got > 0 {
			t.Fatalf("%d offers came to an agent that does not read", got)
		}
		close(a.stall)
		time.Sleep(offerAgain / 4)
		synctest.Wait()
		if got := len(a.offers); got != n+1 {
			t.Errorf("%d offers came, want %d", got, n+1)
		}
		if a.pieces != n {
			t.Errorf("%d pieces came, want %d", a.pieces, n)
		}
		r.stop()
		r.store.Close()
	})
}

// Who asks for more than it reads does not get it all, and keeps its link.
func TestTooManyFetchesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.link.QueueBytes = 100 << 10
		r.link.WriteStall = time.Hour
		r.start()
		a := r.taker("a")
		a.deaf, a.stall = true, make(chan struct{})
		a.come()
		r.pipeline("c", strings.Repeat("0123456789abcdef", 64<<10))
		for range maxFetches + 10 {
			a.say(&musterv1.FetchConfig{Kind: musterv1.Config_PIPELINE, Name: "c", Version: 1})
		}
		close(a.stall)
		time.Sleep(offerAgain / 4)
		synctest.Wait()
		if a.pieces < maxFetches || a.pieces >= maxFetches+10 {
			t.Errorf("%d pieces of %d requests, want some refused", a.pieces, maxFetches+10)
		}
		for _, n := range a.nacks { // in a full queue there may be no room for them
			if n.Reason != musterv1.Nack_RETRY {
				t.Errorf("told %v", n)
			}
		}
		r.wantStatus("a", musterv1.Agent_ONLINE)
		r.stop()
		r.store.Close()
	})
}

// An agent that was deleted is a new one when it comes again; what it holds is
// known again from what it says.
func TestDeletedAgentBringsItsConfigsAgain(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a").come()
		r.pipeline("app", "one")
		a.leave()
		s := &agentService{c: r.c}
		if _, err := s.DeleteAgent(t.Context(), &musterv1.DeleteAgentRequest{Id: "a"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := r.configs().GetAgentConfigs(t.Context(), &musterv1.GetAgentConfigsRequest{AgentId: "a"}); status.Code(err) != codes.NotFound {
			t.Errorf("configs of a deleted agent: %v", err)
		}
		r.bind("app", fleetWide(1), forAgent("x", 1))
		if r.c.configs.holdings["a"] != nil {
			t.Error("a deleted agent takes memory")
		}
		a.come()
		r.wantConfig("app", "a", applied, 1, 1)
		r.deleteConfig("app")
		a.wantNoFile(file("app"))
	})
}

// N76: 0 and -1 are no versions that can be bound, fetched or made.
func TestReservedVersionsAreRefused(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a").come()
		r.pipeline("app", "one")
		for _, n := range []int32{0, deletedVersion} {
			_, err := r.configs().PutConfig(t.Context(), &musterv1.PutConfigRequest{Config: &musterv1.Config{Name: "app", Bindings: []*musterv1.Binding{fleetWide(n)}}})
			wantFault(t, err, codes.InvalidArgument, "bindings[0].version")
			a.say(&musterv1.FetchConfig{Kind: musterv1.Config_PIPELINE, Name: "app", Version: n})
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.gone != 2 {
			t.Errorf("%d answers that it is gone, want 2", a.gone)
		}
	})
}

// The smallest scope's version counts, among groups that of the later name.
func TestPipelineScopes(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b, c := r.taker("a").come(), r.taker("b").come(), r.taker("c").come()
		r.group("g1", "", "a", "b")
		r.group("g2", "", "a", "b")
		r.head(musterv1.Config_PIPELINE, "app")
		for _, content := range []string{"fleet", "g1", "g2", "agent"} {
			r.version("app", content)
		}
		r.bind("app", fleetWide(1), forGroup("g2", 3), forGroup("g1", 2), forAgent("a", 4))
		a.wantFile(file("app"), "agent")
		b.wantFile(file("app"), "g2")
		c.wantFile(file("app"), "fleet")
		cfg, err := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: "app"})
		if err != nil || cfg.Counts.Total != 3 || cfg.Counts.Applied != 3 {
			t.Errorf("counts %v, %v", cfg.GetCounts(), err)
		}
		resp, err := r.configs().ListConfigStatus(t.Context(), &musterv1.ListConfigStatusRequest{Config: "app", PageSize: 2})
		if err != nil || len(resp.Statuses) != 2 || resp.NextPageToken == "" || resp.Statuses[1].AgentId != "b" || resp.Statuses[1].WantedVersion != 3 {
			t.Errorf("statuses %v, %v", resp, err)
		}
		resp, err = r.configs().ListConfigStatus(t.Context(), &musterv1.ListConfigStatusRequest{Config: "app", PageSize: 2, PageToken: resp.NextPageToken,
			Statuses: []musterv1.ConfigStatus_Status{applied}})
		if err != nil || len(resp.Statuses) != 1 || resp.NextPageToken != "" {
			t.Errorf("second page %v, %v", resp, err)
		}
	})
}
