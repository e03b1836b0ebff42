package coordinator

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// However much of a request is wrong, the answer to it is short.
func TestFaultsThatAreToldAreFew(t *testing.T) {
	cmd := to("a")
	cmd.Labels = map[string]string{}
	for i := range 1000 {
		cmd.Labels[fmt.Sprintf("%0200d", i)] = "x"
	}
	st := status.Convert(checkCommand(cmd))
	if st.Code() != codes.InvalidArgument {
		t.Fatalf("got %v", st)
	}
	told := 0
	for _, d := range st.Details() {
		if br, ok := d.(*errdetails.BadRequest); ok {
			told += len(br.FieldViolations)
		}
	}
	if told != maxFaults {
		t.Errorf("%d faults are told, want %d", told, maxFaults)
	}
}

func (r *rig) submitKey(key string, cmd *musterv1.Command) (*musterv1.Command, error) {
	return r.cmds.CreateCommand(r.t.Context(), &musterv1.CreateCommandRequest{Command: cmd, IdempotencyKey: key})
}

func TestC099OneKeyOneCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		a := r.peer("a").join()
		first, err := r.submitKey("k", to("a"))
		if err != nil {
			t.Fatal(err)
		}
		again, err := r.submitKey("k", to("a"))
		if err != nil || again.Id != first.Id {
			t.Fatalf("the same again: %v, %v", again, err)
		}
		other := to("a")
		other.Name = "another"
		if _, err := r.submitKey("k", other); status.Code(err) != codes.AlreadyExists {
			t.Errorf("another body: %v", err)
		}
		if _, err := r.submitKey("bad", to()); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a bad command: %v", err)
		}
		if _, err := r.submitKey("bad", to("a")); err != nil {
			t.Errorf("a failed check must not burn the key: %v", err)
		}
		for _, key := range []string{strings.Repeat("k", 256), "a\nb", "\x7f"} {
			if _, err := r.submitKey(key, to("a")); status.Code(err) != codes.InvalidArgument {
				t.Errorf("key %q: %v", key, err)
			}
		}

		var wg sync.WaitGroup
		var mu sync.Mutex
		ids := map[string]bool{}
		for range 20 {
			wg.Go(func() {
				cmd, err := r.submitKey("together", to("a"))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				ids[cmd.Id] = true
			})
		}
		wg.Wait()
		if len(ids) != 1 {
			t.Errorf("20 requests at a time made %d commands", len(ids))
		}
		a.wantGot(3)
		a.leave()
		r.stop()

		r.start()
		if again, err := r.submitKey("k", to("a")); err != nil || again.Id != first.Id {
			t.Errorf("after a restart: %v, %v", again, err)
		}
		r.stop()
		r.store.Close()
	})
}

func TestSelectorsChooseByTag(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		for id, env := range map[string]string{"w1": "prod", "w2": "prod", "d1": "dev", "n1": ""} {
			p := r.peer(id)
			if env != "" {
				p.reg.Tags = map[string]string{"env": env}
			}
			p.join()
			defer p.leave()
		}
		where := func(expr string) (*musterv1.PreviewCommandResponse, error) {
			return r.cmds.PreviewCommand(t.Context(), &musterv1.PreviewCommandRequest{
				Command: &musterv1.Command{Type: "exec", Target: &musterv1.TargetSelector{Where: expr}}, PageSize: 1})
		}
		got, err := where(`tags["env"] == "prod" && status == "ONLINE"`)
		if err != nil || got.Total != 2 || got.Online != 2 || got.Fleet != 4 || got.Targets[0].AgentId != "w1" || got.NextPageToken == "" {
			t.Errorf("got %v, %v", got, err)
		}
		for expr, want := range map[string]string{
			`tags["env"] = "prod"`: "not a CEL expression",
			`id`:                   "want true or false",
			`nothing == 1`:         "not a CEL expression",
			`id == "` + strings.Repeat("x", 5000) + `"`: "at most",
			`[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, a+b+c+d+e > 0)))))`: "takes too long",
			`id == "none"`: "no agent matches",
		} {
			if _, err := where(expr); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
				t.Errorf("%.60s: %v, want %q", expr, err, want)
			}
		}
		// The list is fixed at submit: who comes later does not get it.
		cmd := r.submit(&musterv1.Command{Type: "exec", Target: &musterv1.TargetSelector{Where: `tags["env"] == "prod"`}})
		late := r.peer("w3")
		late.reg.Tags = map[string]string{"env": "prod"}
		late.join()
		defer late.leave()
		late.wantGot(0)
		if cmd.Counts.Total != 2 {
			t.Errorf("got %v", cmd.Counts)
		}
	})
}

func TestTypeThatNoTargetHasIsRefused(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		p := r.peer("a")
		p.reg.CommandTypes = []string{"exec", "ping"}
		p.join()
		defer p.leave()
		cmd := to("a")
		cmd.Type = "nope"
		if _, err := r.submitKey("", cmd); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "type") {
			t.Errorf("got %v", err)
		}
	})
}

func TestMaintenanceHoldsTheQueue(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		s := &agentService{c: r.c}
		set := func(on bool) *musterv1.Agent {
			got, err := s.SetMaintenance(t.Context(), &musterv1.SetMaintenanceRequest{Id: "a", Maintenance: on})
			if err != nil || got.Maintenance != on {
				t.Fatalf("%v, %v", got, err)
			}
			return got
		}
		set(true)
		cmd := r.submit(to("a"))
		a.wantGot(0)
		r.net.Cut() // it stays so over a new link
		time.Sleep(5 * time.Second)
		a.wantGot(0)
		if q := set(true).Queue; q.Waiting != 1 || q.OldestCommandId != cmd.Id {
			t.Errorf("queue %v", q)
		}
		set(false)
		a.wantGot(1)
	})
}

func walk(t *testing.T, r *rig, req *musterv1.ListCommandsRequest) (ids []string) {
	t.Helper()
	for range 1000 {
		page, err := r.cmds.ListCommands(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Commands {
			ids = append(ids, c.Id)
		}
		if page.NextPageToken == "" {
			return ids
		}
		req.PageToken = page.NextPageToken
	}
	t.Fatal("the walk does not end")
	return nil
}

func TestC094PagesAreStableUnderInserts(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		var old []string
		for i := range 50 {
			cmd := to("a")
			cmd.Labels = map[string]string{"n": fmt.Sprint(i % 5)}
			old = append(old, r.submit(cmd).Id)
		}
		for _, order := range []musterv1.Order{musterv1.Order_ASC, musterv1.Order_DESC} {
			req := &musterv1.ListCommandsRequest{PageSize: 7, Order: order}
			seen := map[string]int{}
			for {
				page, err := r.cmds.ListCommands(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range page.Commands {
					seen[c.Id]++
				}
				if page.NextPageToken == "" {
					break
				}
				req.PageToken = page.NextPageToken
				if len(seen) < 40 {
					r.submit(to("a"))
				}
			}
			for _, id := range old {
				if seen[id] != 1 {
					t.Errorf("order %s: command %s came %d times", order, id, seen[id])
				}
			}
		}
		if got := walk(t, r, &musterv1.ListCommandsRequest{PageSize: 3, Filter: `labels["n"] == "3" && "a" in agents && state == "OPEN"`}); len(got) != 10 {
			t.Errorf("the filter found %d, want 10", len(got))
		}
	})
}

func TestC095TokenOfAnotherListIsRefused(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		for range 3 {
			r.submit(to("a"))
		}
		page, err := r.cmds.ListCommands(t.Context(), &musterv1.ListCommandsRequest{PageSize: 1})
		if err != nil {
			t.Fatal(err)
		}
		bad := func(ctx context.Context, req *musterv1.ListCommandsRequest) {
			t.Helper()
			if _, err := r.cmds.ListCommands(ctx, req); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v: %v", req, err)
			}
		}
		tok := page.NextPageToken
		bad(t.Context(), &musterv1.ListCommandsRequest{PageToken: tok, Order: musterv1.Order_ASC})
		bad(t.Context(), &musterv1.ListCommandsRequest{PageToken: tok, Filter: "true"})
		bad(t.Context(), &musterv1.ListCommandsRequest{PageToken: tok[:len(tok)-1]})
		bad(t.Context(), &musterv1.ListCommandsRequest{PageToken: "%%%"})
		bad(t.Context(), &musterv1.ListCommandsRequest{PageToken: strings.Repeat("A", 10<<10)})
		if _, err := (&agentService{c: r.c}).ListAgents(t.Context(), &musterv1.ListAgentsRequest{PageToken: tok}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a token of commands opens agents: %v", err)
		}
	})
}
