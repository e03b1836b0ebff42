package coordinator

import (
	"testing"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// An agent that was forgotten comes back with the document of this store, which it
// shall not have any more: it is taken away, like a file would be. A document that
// this store cannot have merged is left alone, and the status says so.
func TestDocumentOfForgottenAgentIsTakenAway(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.head(musterv1.Config_INSTANCE, "app")
		r.bind("app", fleetWide(r.version("app", `{"a":1}`)))
		a := r.taker("a").come()
		a.wantFile(instance, "{\n  \"a\": 1\n}\n")
		a.leave()
		if err := r.delete("a"); err != nil {
			t.Fatal(err)
		}
		r.bind("app")
		a.come()
		time.Sleep(time.Minute)
		a.wantNoFile(instance)
		if st := r.statusOf("app", "a"); st != nil {
			t.Errorf("it holds nothing of it: %v", st)
		}
		a.leave()

		b := r.taker("b")
		b.says[instance] = &musterv1.ConfigStatus{Kind: musterv1.Config_INSTANCE, Name: instanceName, Version: 77, Status: musterv1.ConfigStatus_APPLIED, RunningVersion: 77}
		b.come()
		time.Sleep(time.Minute)
		b.wantOffers(instance)
		for _, st := range r.agentConfigs("b").Configs {
			if st.WantedVersion != 0 {
				t.Errorf("it is left alone: %v", st)
			}
		}
		b.leave()
	})
}
