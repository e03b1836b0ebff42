package coordinator

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

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
