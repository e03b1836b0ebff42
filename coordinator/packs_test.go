package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/faulty"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// disk says how a store misbehaves.
type disk struct {
	forget atomic.Bool // commits of results are applied, and it does not know it
	deaf   atomic.Bool // nothing can be read

	commits atomic.Int32 // so far
}

// slowDisk has a store whose commits take 10 ms, so that several results wait for
// each.
func slowDisk(t *testing.T, body func(t *testing.T, r *rig, d *disk)) {
	synctest.Test(t, func(t *testing.T) {
		r, d := newRig(t), &disk{}
		r.store = faulty.New(r.store, func(c faulty.Call) (f faulty.Fault) {
			switch c.Method {
			case faulty.Commit:
				f.Delay = 10 * time.Millisecond
				d.commits.Add(1)
			case faulty.Get:
				if d.deaf.Load() {
					f.Refuse = errors.New("not now")
				}
			}
			f.Forget = d.forget.Load() && slices.ContainsFunc(c.Batch.Ops, func(o store.Op) bool { return strings.HasPrefix(string(o.Key), resPrefix) })
			return f
		})
		r.start()
		body(t, r, d)
		r.stop()
		r.store.Close()
	})
}

// listTargets reads all pages of a command's targets.
func (r *rig) listTargets(id string, size uint32) (all []*musterv1.Target) {
	r.t.Helper()
	req := &musterv1.ListTargetsRequest{CommandId: id, PageSize: size}
	for {
		page, err := r.cmds.ListTargets(r.t.Context(), req)
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, page.Targets...)
		if req.PageToken = page.NextPageToken; req.PageToken == "" {
			return all
		}
	}
}

func (r *rig) packsOf(id string) (packs, targets int) {
	r.t.Helper()
	err := eachPack(r.t.Context(), r.store, id, func(_ uint32, ts []*musterv1.Target) error {
		packs, targets = packs+1, targets+len(ts)
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return packs, targets
}

func wantResults(t *testing.T, ts []*musterv1.Target, agents int) {
	t.Helper()
	if len(ts) != agents {
		t.Fatalf("%d targets, want %d", len(ts), agents)
	}
	for i, got := range ts {
		id := fmt.Sprintf("a-%03d", i)
		if got.AgentId != id || got.State != musterv1.Target_SUCCEEDED || string(got.Result) != fmt.Sprintf(`{"of":%q}`, id) {
			t.Errorf("target %d is %v", i, got)
		}
	}
}

// Two hundred results that wait for the disk together are a handful of rows, and
// each is found: while the command is open, when it has ended, and after a
// restart.
func TestResultsAreStoredInPacks(t *testing.T) {
	slowDisk(t, func(t *testing.T, r *rig, _ *disk) {
		const agents = 200
		var ps []*peer
		for i := range agents {
			ps = append(ps, r.peer(fmt.Sprintf("a-%03d", i)).join())
		}
		defer func() {
			for _, p := range ps {
				p.leave()
			}
		}()
		time.Sleep(time.Minute)
		cmd := r.submit(&musterv1.Command{Type: "ping", Target: &musterv1.TargetSelector{All: true}})
		time.Sleep(time.Second)
		synctest.Wait()
		tell := func(p *peer) {
			p.say(&musterv1.Target{CommandId: cmd.Id, AgentId: p.reg.AgentId, State: musterv1.Target_SUCCEEDED, Result: fmt.Appendf(nil, `{"of":%q}`, p.reg.AgentId)})
		}
		order := slices.Clone(ps[:agents-1])
		slices.Reverse(order)
		for _, p := range order {
			tell(p)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := r.command(cmd.Id); got.Counts.Succeeded != agents-1 {
			t.Fatalf("got %v", got.Counts)
		}
		wantResults(t, r.listTargets(cmd.Id, 7)[:agents-1], agents-1)
		tell(ps[agents-1])
		time.Sleep(time.Second)
		synctest.Wait()
		if got := r.command(cmd.Id); got.State != musterv1.Command_DONE {
			t.Fatalf("got %v", got)
		}
		wantResults(t, r.listTargets(cmd.Id, 7), agents)
		if packs, targets := r.packsOf(cmd.Id); targets != agents || packs > agents/10 {
			t.Errorf("%d targets in %d rows", targets, packs)
		}
		r.stop()
		r.start()
		wantResults(t, r.listTargets(cmd.Id, 1000), agents)
	})
}

// A commit of results that was applied, and that the coordinator took for
// failed, keeps its results: told again they are acknowledged and not stored
// twice. It is the same when the coordinator cannot look for a while whether it was
// applied.
func TestResultsOfUnknownOutcome(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf=%v", deaf), func(t *testing.T) {
			slowDisk(t, func(t *testing.T, r *rig, d *disk) { unknownOutcome(t, r, d, deaf) })
		})
	}
}

func unknownOutcome(t *testing.T, r *rig, d *disk, deaf bool) {
	a, b := r.peer("a").join(), r.peer("b").join()
	time.Sleep(time.Second)
	cmd := r.submit(to("a", "b"))
	d.forget.Store(true)
	d.deaf.Store(deaf)
	a.say(&musterv1.Target{CommandId: cmd.Id, AgentId: "a", State: musterv1.Target_SUCCEEDED, Result: []byte(`1`)})
	time.Sleep(time.Minute)
	a.wantAcked()
	d.forget.Store(false)
	d.deaf.Store(false)
	if got := r.wantState(cmd.Id, "a", musterv1.Target_SUCCEEDED); string(got.Result) != "1" {
		t.Errorf("got %v", got)
	}
	a.say(&musterv1.Target{CommandId: cmd.Id, AgentId: "a", State: musterv1.Target_SUCCEEDED, Result: []byte(`1`)})
	a.wantAcked(cmd.Id)
	b.report(cmd.Id, musterv1.Target_FAILED)
	b.wantAcked(cmd.Id)
	for range 2 {
		if got := r.wantState(cmd.Id, "a", musterv1.Target_SUCCEEDED); string(got.Result) != "1" {
			t.Errorf("got %v", got)
		}
		r.wantState(cmd.Id, "b", musterv1.Target_FAILED)
		if _, targets := r.packsOf(cmd.Id); targets != 2 {
			t.Errorf("%d targets are stored", targets)
		}
		a.leave()
		b.leave()
		r.stop()
		r.start()
	}
}

// What the agent tells after the coordinator has decided is kept beside it,
// whether the command is open, has ended or was loaded.
func TestLateReportsFindTheFirstResult(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		var ps []*peer
		for _, id := range []string{"a", "b", "c"} {
			ps = append(ps, r.peer(id).join())
		}
		cmd := to("a", "b", "c")
		cmd.ExpiresIn, cmd.Timeout = lasting(time.Second), lasting(time.Second)
		id := r.submit(cmd).Id
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		ps[0].report(id, musterv1.Target_SUCCEEDED)
		ps[0].wantAcked(id)
		for _, p := range ps {
			p.leave()
		}
		r.stop()
		r.start()
		ps[1] = r.peer("b").join()
		defer ps[1].leave()
		ps[1].report(id, musterv1.Target_FAILED)
		ps[1].wantAcked(id)
		for i, want := range []musterv1.Target_State{musterv1.Target_SUCCEEDED, musterv1.Target_FAILED, 0} {
			if got := r.wantState(id, ps[i].reg.AgentId, musterv1.Target_LOST); got.Late.GetState() != want {
				t.Errorf("%s: %v came late, want %v", ps[i].reg.AgentId, got.Late, want)
			}
		}
	})
}

func TestPlacesOfATarget(t *testing.T) {
	for _, c := range []struct {
		pack  uint32
		index int
	}{{0, 0}, {0, packTargets - 1}, {1, 0}, {99_999, 17}} {
		if p := placeIn(c.pack, c.index); p == 0 || p.pack() != c.pack || p.index() != c.index {
			t.Errorf("pack %d, %d: place %d is pack %d, %d", c.pack, c.index, p, p.pack(), p.index())
		}
	}
}

// targetsAt reads more packs than it holds at a time, in any order, and none that
// is not there.
func TestTargetsOfManyPacks(t *testing.T) {
	s := store.NewMem(Spaces...)
	defer s.Close()
	const packs = 3*packsAtOnce + 5
	var at []place
	for n := range uint32(packs) {
		var row musterv1.ResultPack
		for i := range 3 {
			row.Targets = append(row.Targets, &musterv1.Target{CommandId: "c", AgentId: fmt.Sprintf("%d/%d", n, i), State: musterv1.Target_SUCCEEDED})
			at = append(at, placeIn(n, 2-i))
		}
		if _, err := s.Commit(t.Context(), store.Batch{Ops: []store.Op{{Space: spaceHistory, Key: packKey("c", n), Value: encode(&row)}}}); err != nil {
			t.Fatal(err)
		}
	}
	at = append(at, 0, placeIn(packs+1, 0))
	slices.Reverse(at)
	ts, err := targetsAt(t.Context(), s, "c", at)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range at {
		if want := fmt.Sprintf("%d/%d", p.pack(), p.index()); i < 2 && ts[i] != nil || i >= 2 && ts[i].GetAgentId() != want {
			t.Errorf("place %d holds %v, want %s", p, ts[i], want)
		}
	}
	if _, err := targetsAt(t.Context(), s, "c", []place{placeIn(0, 3)}); err == nil {
		t.Error("a Target that is not in its pack was read")
	}
}

// A pack's first Target of an agent counts, and no later pack is written over.
func TestFirstResultInTheOrderOfPacksWins(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.peer("a").join(), r.peer("b").join()
		id := r.submit(to("a", "b")).Id
		a.leave()
		b.leave()
		r.stop()
		both := []*musterv1.Target{
			{CommandId: id, AgentId: "a", State: musterv1.Target_FAILED},
			{CommandId: id, AgentId: "a", State: musterv1.Target_SUCCEEDED},
		}
		for n, t2 := range both {
			op := store.Op{Space: spaceHistory, Key: packKey(id, uint32(n)), Value: encode(&musterv1.ResultPack{Targets: []*musterv1.Target{proto.CloneOf(t2)}})}
			if _, err := r.store.Commit(context.Background(), store.Batch{Ops: []store.Op{op}}); err != nil {
				t.Fatal(err)
			}
		}
		r.start()
		r.wantState(id, "a", musterv1.Target_FAILED)
		b = r.peer("b").join()
		defer b.leave()
		b.report(id, musterv1.Target_SUCCEEDED)
		b.wantAcked(id)
		r.wantState(id, "a", musterv1.Target_FAILED)
		if packs, targets := r.packsOf(id); packs != 3 || targets != 3 {
			t.Errorf("%d packs of %d targets are stored, want one more than there were", packs, targets)
		}
		if got := r.command(id); got.State != musterv1.Command_DONE || got.Counts.Failed != 1 || got.Counts.Succeeded != 1 {
			t.Errorf("got %v", got)
		}
	})
}

// blindPacker commits results of a command "c" to agents a and b, without anybody
// who watches.
func blindPacker(plan faulty.Plan) (*packer, *openCommand) {
	s := faulty.New(store.NewMem(Spaces...), plan)
	oc := &openCommand{cmd: &musterv1.Command{Id: "c"}, targets: []string{"a", "b"}, states: make([]state, 2), places: places{at: make([]place, 2)}, ended: make(chan struct{})}
	l := newLedger(1)
	l.add(oc)
	return &packer{store: s, ledger: l, fresh: &freshPacks{}, log: slog.New(slog.DiscardHandler)}, oc
}

func resultFor(agent string) result {
	return resultOf(&musterv1.Target{CommandId: "c", AgentId: agent, State: musterv1.Target_SUCCEEDED})
}

// A pack that turns out to be stored keeps its places, one that is not stored
// gives them back, and its number is not used again.
func TestPlacesAfterAFailedCommit(t *testing.T) {
	for name, c := range map[string]struct {
		fault faulty.Fault
		taken bool
	}{
		"unknown, and applied": {faulty.Fault{Forget: true}, true},
		"refused":              {faulty.Fault{Refuse: errors.New("disk full")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			fault := c.fault
			p, oc := blindPacker(func(call faulty.Call) (f faulty.Fault) {
				if call.Method == faulty.Commit {
					f, fault = fault, f
				}
				return f
			})
			defer p.store.Close()
			results := []result{resultFor("a")}
			if _, _, err := p.commit(t.Context(), nil, results); err == nil {
				t.Fatal("the commit did not fail")
			}
			_, skipped, err := p.commit(t.Context(), nil, results)
			if err != nil {
				t.Fatal(err)
			}
			if skipped[0] != c.taken {
				t.Errorf("the second one skipped: %v, want %v", skipped, c.taken)
			}
			ts, err := targetsAt(t.Context(), p.store, "c", oc.placesOf([]string{"a", "b"}))
			if err != nil || ts[0].GetAgentId() != "a" || ts[1] != nil {
				t.Errorf("read %v, %v", ts, err)
			}
			if n := len(p.fresh.byKey); n != 1 {
				t.Errorf("%d packs are kept for the watch, want the one that is stored", n)
			}
			if !c.taken && oc.places.at[0].pack() == 0 {
				t.Error("the number of the failed pack was used again")
			}
		})
	}
}

// An index that lacks places is made from what is stored.
func TestIndexIsMadeWhole(t *testing.T) {
	p, oc := blindPacker(nil)
	defer p.store.Close()
	if _, _, err := p.commit(t.Context(), nil, []result{resultFor("a"), resultFor("b")}); err != nil {
		t.Fatal(err)
	}
	want := oc.placesOf(oc.targets)
	oc.places.free([]int{1})
	c := &Coordinator{store: p.store}
	ops, err := c.index(t.Context(), oc)
	if err != nil || len(ops) != 1 {
		t.Fatalf("got %v, %v", ops, err)
	}
	var row musterv1.ResultIndex
	if err := proto.Unmarshal(ops[0].Value, &row); err != nil || len(row.Places) != 2 || place(row.Places[1]) != want[1] {
		t.Errorf("got %v, want %v (%v)", &row, want, err)
	}
}

// A report that no row can hold is refused, and costs the others nothing: a batch
// with it would be stored write by write.
func TestReportThatFitsNoRow(t *testing.T) {
	slowDisk(t, func(t *testing.T, r *rig, d *disk) {
		const agents = 100
		var ps []*peer
		for i := range agents {
			ps = append(ps, r.peer(fmt.Sprintf("a-%03d", i)).join())
		}
		time.Sleep(time.Minute)
		id := r.submit(&musterv1.Command{Type: "ping", Target: &musterv1.TargetSelector{All: true}}).Id
		time.Sleep(time.Second)
		synctest.Wait()
		before := d.commits.Load()
		for i, p := range ps {
			tell := &musterv1.Target{CommandId: id, AgentId: p.reg.AgentId, State: musterv1.Target_SUCCEEDED}
			if i == agents/2 {
				tell.Signal = strings.Repeat("X", store.MaxValue)
			}
			if err := p.current().Send(tell); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := d.commits.Load() - before; n > 10 {
			t.Errorf("%d commits", n)
		}
		if got := r.command(id).Counts.Succeeded; got != agents-1 {
			t.Errorf("%d results are stored", got)
		}
		if got := ps[agents/2].lastNack(); got.Reason != musterv1.Nack_INVALID {
			t.Errorf("got %v", got)
		}
		for _, p := range ps {
			p.leave()
		}
	})
}

// Targets as large as may be are packed so that no row is too large, in one batch
// and in the writes of a command that was never open.
func TestLargeTargetsAreApart(t *testing.T) {
	sized := func(agent string, n int) *musterv1.Target {
		return &musterv1.Target{CommandId: "c", AgentId: agent, State: musterv1.Target_SUCCEEDED, Signal: strings.Repeat("x", n)}
	}
	large := sized("b", maxTarget-100)
	if n := proto.Size(large); n > maxTarget || n < maxTarget-100 {
		t.Fatalf("a Target of %d bytes", n)
	}
	ts := []*musterv1.Target{sized("a", packBytes/2), large}
	p, oc := blindPacker(nil)
	defer p.store.Close()
	if _, _, err := p.commit(t.Context(), nil, []result{resultOf(ts[0]), resultOf(ts[1])}); err != nil {
		t.Fatal(err)
	}
	e := Ended{Command: &musterv1.Command{Id: "d"}}
	for i := range 100 {
		e.Targets = append(e.Targets, sized(fmt.Sprintf("%03d", i), 20<<10))
	}
	for _, op := range e.Ops() {
		if _, err := p.store.Commit(t.Context(), store.Batch{Ops: []store.Op{op}}); err != nil {
			t.Fatal(err)
		}
	}
	ended, err := readEnded(t.Context(), p.store, "d")
	if err != nil {
		t.Fatal(err)
	}
	for id, c := range map[string]struct {
		want []*musterv1.Target
		at   []place
	}{"c": {ts, oc.placesOf([]string{"a", "b"})}, "d": {e.Targets, ended.at}} {
		got, err := targetsAt(t.Context(), p.store, id, c.at)
		if err != nil || !slices.EqualFunc(got, c.want, func(a, b *musterv1.Target) bool { return proto.Equal(a, b) }) {
			t.Errorf("command %s: %d targets are not as they were stored (%v)", id, len(got), err)
		}
	}
}
