package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/faulty"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// sick is a store that refuses commits which touch keys with a prefix, and
// whose watches can be cut.
type sick struct {
	store.Store
	refuse    atomic.Value                       // string: the prefix; "": none
	cut       atomic.Pointer[context.CancelFunc] // of spaceHistory
	cutConfig atomic.Pointer[context.CancelFunc]
	blind     atomic.Bool // watches fail
}

func (s *sick) Commit(ctx context.Context, b store.Batch) (store.Result, error) {
	if p, _ := s.refuse.Load().(string); p != "" {
		for _, o := range b.Ops {
			if strings.HasPrefix(string(o.Key), p) {
				return store.Result{}, fmt.Errorf("disk full: %w", store.ErrUnavailable)
			}
		}
	}
	return s.Store.Commit(ctx, b)
}

func (s *sick) Watch(ctx context.Context, sp store.Space, prefix []byte, after store.Rev) (<-chan []store.Event, error) {
	if s.blind.Load() {
		return nil, store.ErrCompacted
	}
	ctx, cancel := context.WithCancel(ctx)
	if sp == spaceHistory {
		s.cut.Store(&cancel)
	} else {
		s.cutConfig.Store(&cancel)
	}
	return s.Store.Watch(ctx, sp, prefix, after)
}

func sickTest(t *testing.T, body func(t *testing.T, r *rig, s *sick)) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := &sick{Store: r.store}
		r.store = s
		r.start()
		body(t, r, s)
		r.stop()
		r.store.Close()
	})
}

func TestReportIsAcknowledgedOnlyWhenStored(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		a := r.peer("a").join()
		defer a.leave()
		cmd := r.submit(to("a"))
		s.refuse.Store(resPrefix)
		a.report(cmd.Id, musterv1.Target_SUCCEEDED)
		time.Sleep(time.Minute)
		a.wantAcked()
		r.wantState(cmd.Id, "a", musterv1.Target_SENT)
		s.refuse.Store("")
		a.report(cmd.Id, musterv1.Target_SUCCEEDED)
		a.wantAcked(cmd.Id)
	})
}

func TestNothingIsSentWithoutItsMark(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		a := r.peer("a").join()
		defer a.leave()
		r.submit(to("a")) // or else the mark would be stored with the command
		s.refuse.Store(sentPrefix)
		cmd := r.submit(to("a"))
		time.Sleep(10 * time.Second)
		a.wantGot(1)
		r.wantState(cmd.Id, "a", musterv1.Target_QUEUED)
		s.refuse.Store("")
		time.Sleep(2 * time.Second)
		a.wantGot(2)
		r.wantState(cmd.Id, "a", musterv1.Target_SENT)
	})
}

func TestC107SubmitIsRefusedWhenItCannotBeStored(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		a := r.peer("a").join()
		defer a.leave()
		s.refuse.Store(cmdPrefix)
		_, err := r.cmds.CreateCommand(t.Context(), &musterv1.CreateCommandRequest{Command: to("a")})
		if code := status.Code(toStatus(err)); code != codes.Unavailable {
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Minute)
		a.wantGot(0)
		r.wantStatus("a", musterv1.Agent_ONLINE)
	})
}

func TestUnrecordedAgentIsAskedToComeAgain(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		s.refuse.Store(agentPrefix)
		a := r.peer("a").join()
		defer a.leave()
		time.Sleep(time.Second)
		synctest.Wait()
		a.mu.Lock()
		bye := slices.Clone(a.bye)
		a.mu.Unlock()
		if len(bye) == 0 || bye[0].RetryAfter.AsDuration() <= 0 {
			t.Fatalf("got %v", bye)
		}
		if got := r.c.fleet.view("a"); got != nil {
			t.Fatalf("an agent that is not recorded is shown: %v", got)
		}
		s.refuse.Store("")
		time.Sleep(time.Minute)
		r.wantStatus("a", musterv1.Agent_ONLINE)
	})
}

func TestExpiryIsStoredWhenTheStoreIsWellAgain(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		r.peer("a").join().leave()
		cmd := to("a")
		cmd.ExpiresIn = lasting(time.Second)
		cmd = r.submit(cmd)
		s.refuse.Store(resPrefix)
		time.Sleep(10 * time.Second)
		r.wantState(cmd.Id, "a", musterv1.Target_QUEUED)
		s.refuse.Store(sumPrefix)
		time.Sleep(3 * time.Second)
		r.wantState(cmd.Id, "a", musterv1.Target_EXPIRED)
		s.refuse.Store("")
		time.Sleep(3 * time.Second)
		if got := r.command(cmd.Id); got.State != musterv1.Command_DONE {
			t.Errorf("got %v", got)
		}
	})
}

// While the watch is cut, a command is submitted, one gets its result and one
// ends; all of it is seen when the coordinator reads again.
func TestCutWatchMissesNothing(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		a, b := r.peer("a").join(), r.peer("b").join()
		defer a.leave()
		defer b.leave()
		one, both := r.submit(to("a")), r.submit(to("a", "b"))
		w := r.watch("")
		s.blind.Store(true)
		(*s.cut.Load())()
		synctest.Wait()
		a.report(one.Id, musterv1.Target_SUCCEEDED)
		a.report(both.Id, musterv1.Target_SUCCEEDED)
		a.wantAcked(one.Id, both.Id)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		done := make(chan string)
		go func() {
			cmd, err := r.cmds.CreateCommand(ctx, &musterv1.CreateCommandRequest{Command: to("b")})
			if err != nil {
				t.Error(err)
			}
			done <- cmd.GetId()
		}()
		time.Sleep(5 * time.Second)
		s.blind.Store(false)
		id := <-done
		time.Sleep(5 * time.Second)
		if got := r.command(one.Id); got.State != musterv1.Command_DONE {
			t.Errorf("got %v", got)
		}
		r.wantState(both.Id, "a", musterv1.Target_SUCCEEDED)
		b.wantGot(2)
		b.report(both.Id, musterv1.Target_SUCCEEDED)
		b.report(id, musterv1.Target_SUCCEEDED)
		if got := r.command(both.Id); got.State != musterv1.Command_DONE {
			t.Errorf("got %v", got)
		}
		if ks := w.kinds(); len(ks) == 0 || ks[0] != "resync" {
			t.Errorf("events after the cut: %v", ks)
		}
		w.stop()
	})
}

func TestBacklogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatcher(&packer{store: store.NewMem(Spaces...)}, 3, 100)
		w := func(size int) *write { return &write{ops: fixed(), size: size} }
		for range 2 {
			if err := b.add(w(40)); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.add(w(40)); err == nil {
			t.Error("bytes over the limit were taken")
		}
		if err := b.add(w(1)); err != nil {
			t.Error(err)
		}
		if err := b.add(w(1)); err == nil {
			t.Error("items over the limit were taken")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.run(ctx) }()
		synctest.Wait()
		if err := b.add(w(90)); err != nil {
			t.Errorf("after the backlog was written: %v", err)
		}
		cancel()
		<-done
	})
}

// One write that breaks a condition fails alone, and two of one key keep their
// order.
func TestBatchFailsOnlyWhoIsToBlame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := store.NewMem(Spaces...)
		b := newBatcher(&packer{store: mem}, 100, 1<<20)
		var log []string
		add := func(name string, op store.Op) {
			op.Space = spaceFleet
			b.must(&write{ops: fixed(op), done: func(skipped []bool, err error) {
				log = append(log, fmt.Sprint(name, skipped, err != nil))
			}})
		}
		add("a", store.Op{Key: []byte("k"), Value: []byte("1")})
		add("b", store.Op{Key: []byte("x"), Value: []byte("1"), If: store.AtRev(99)})
		add("c", store.Op{Kind: store.PutIfAbsent, Key: []byte("k"), Value: []byte("2")})
		add("d", store.Op{Key: []byte("y"), Value: []byte("1")})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.run(ctx) }()
		time.Sleep(time.Second)
		synctest.Wait()
		if got := strings.Join(log, " "); got != "a[false] false b[false] true c[true] false d[false] false" {
			t.Errorf("got %s", got)
		}
		cancel()
		<-done
	})
}

// An agent that registers again and again, with other tags each time, is turned
// away, and costs few writes.
func TestRegistrationsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := &counting{Store: r.store}
		r.store = s
		r.start()
		a, b := r.peer("a").join(), r.peer("b").join()
		before := s.n.Load()
		for i := range 1000 {
			reg := proto.CloneOf(a.reg)
			reg.Tags = map[string]string{"n": fmt.Sprint(i)}
			if a.current().Send(reg) != nil {
				break
			}
			if i%50 == 0 {
				synctest.Wait()
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := s.n.Load() - before; n > 3*registerBurst {
			t.Errorf("%d commits", n)
		}
		if len(a.bye) == 0 || a.bye[0].RetryAfter.AsDuration() < time.Second {
			t.Errorf("got %v", a.bye)
		}
		time.Sleep(time.Minute)
		r.wantStatus("a", musterv1.Agent_ONLINE) // it may come back
		r.wantStatus("b", musterv1.Agent_ONLINE)
		a.leave()
		b.leave()
		r.stop()
		r.store.Close()
	})
}

// Registrations that are stored when their link is gone let nobody in: not the agent,
// which would be ONLINE and SUSPECT once more by each of them, and none in the place
// of a newer link.
func TestRegistrationsOfALinkThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var slow atomic.Bool
		r.store = faulty.New(r.store, func(call faulty.Call) (f faulty.Fault) {
			if call.Method == faulty.Commit && slow.Load() {
				f.Delay = time.Second
			}
			return f
		})
		r.start()
		online := func(e *musterv1.Event) bool { return e.Agent.GetStatus() == musterv1.Agent_ONLINE }
		for name, comesBack := range map[string]bool{"away": false, "back": true} {
			a := r.peer(name).join()
			slow.Store(true)
			for i := range 10 {
				reg := proto.CloneOf(a.reg)
				reg.Tags = map[string]string{"n": fmt.Sprint(i)}
				a.say(reg)
			}
			before := r.told(online)
			a.leave()
			want := 0
			if comesBack {
				a.join()
				want = 1
			}
			link := a.current()
			time.Sleep(time.Minute)
			slow.Store(false)
			if n := r.told(online) - before; n != want {
				t.Errorf("%s: %d times ONLINE after its link was gone, want %d", name, n, want)
			}
			if comesBack && a.current() != link {
				t.Errorf("%s: its new link was closed", name)
			}
			if comesBack {
				a.leave()
			}
		}
		r.stop()
		r.store.Close()
	})
}

// A link that floods fills its own part of the backlog; another's report gets in.
func TestOneLinkCannotFillTheBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Coordinator{cfg: Config{}.withDefaults()}
		c.batch = newBatcher(&packer{store: store.NewMem(Spaces...)}, c.cfg.Backlog, c.cfg.BacklogBytes)
		flood, other := &session{}, &session{}
		w := func(size int) *write { return &write{ops: fixed(), size: size, done: func([]bool, error) {}} }
		taken := 0
		for range c.cfg.Backlog {
			if c.enqueue(flood, w(1)) == nil {
				taken++
			}
		}
		if taken != c.cfg.Backlog/16 {
			t.Errorf("%d writes of one link were taken, want %d", taken, c.cfg.Backlog/16)
		}
		if err := c.enqueue(other, w(1)); err != nil {
			t.Errorf("another link: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.batch.run(ctx) }()
		synctest.Wait()
		if err := c.enqueue(flood, w(1)); err != nil {
			t.Errorf("after its writes are done: %v", err)
		}
		cancel()
		<-done
	})
}
