package coordinator

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// An agent whose statuses change all the time is written once a second, and makes
// no more events than an agent has reason to. When it is quiet again, what it said
// last is known and stored.
func TestFloodOfConfigStatusesCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		commits := &counting{Store: r.store}
		r.store = commits
		r.start()
		r.pipeline("app", "one")
		a := r.taker("a").come()
		a.mu.Lock()
		a.deaf = true
		a.mu.Unlock()
		w := r.watch("", "config_status")
		before := commits.n.Load()
		const seconds, each = 30, 1000
		say := func(s musterv1.ConfigStatus_Status) {
			if err := a.current().Send(&musterv1.ConfigFeedback{Configs: []*musterv1.ConfigStatus{
				{Kind: musterv1.Config_PIPELINE, Name: "app", Version: 1, RunningVersion: 1, Status: s}}}); err != nil {
				t.Error(err)
			}
		}
		for n := range seconds * each {
			say(musterv1.ConfigStatus_Status(1 + n%2))
			time.Sleep(time.Second / each)
		}
		synctest.Wait()
		if n := commits.n.Load() - before; n > saveBurst+seconds*savesPerSecond+5 {
			t.Errorf("%d commits in %d s", n, seconds)
		}
		if n := len(w.got); n > statusBurst+seconds*statusesPerSecond+5 {
			t.Errorf("%d events in %d s", n, seconds)
		}
		if nack := a.lastNack(); nack.Reason != musterv1.Nack_RETRY {
			t.Errorf("got %v", nack)
		}
		time.Sleep(time.Minute)
		say(musterv1.ConfigStatus_FAILED)
		time.Sleep(3 * time.Second)
		r.wantConfig("app", "a", musterv1.ConfigStatus_FAILED, 1, 1)
		kvs, err := r.store.Get(t.Context(), spaceFleet, heldKey("a"))
		row := &musterv1.AgentConfigs{}
		if err == nil {
			err = proto.Unmarshal(kvs[0].Value, row)
		}
		if err != nil || len(row.Configs) != 1 || row.Configs[0].Status != musterv1.ConfigStatus_FAILED {
			t.Errorf("stored is %v, %v", row, err)
		}
		w.stop()
		a.leave()
		r.stop()
		r.store.Close()
	})
}
