package coordinator

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// setClock is a wall clock that can be set.
type setClock struct{ ahead atomic.Int64 }

func (c *setClock) now() time.Time          { return time.Now().Round(0).Add(time.Duration(c.ahead.Load())) }
func (c *setClock) set(ahead time.Duration) { c.ahead.Store(int64(ahead)) }

// The wall clock of the coordinator is set an hour ahead, back, and a day back,
// while agents are connected and commands are queued and run: nobody goes
// offline, nothing expires early or hangs, new commands are listed behind old
// ones, and a page token from before goes on.
func TestC050WallClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, clock := newRig(t), &setClock{}
		r.cfg.Now = clock.now
		r.start()
		defer func() { r.stop(); r.store.Close() }()
		var agents []*peer
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			a := r.peer(id).join()
			defer a.leave()
			agents = append(agents, a)
		}
		r.peer("away").join().leave()
		time.Sleep(10 * time.Minute)
		r.wantStatus("away", musterv1.Agent_OFFLINE)

		var ids []string
		submit := func(expires time.Duration, to_ ...string) string {
			cmd := to(to_...)
			cmd.ExpiresIn = lasting(expires)
			ids = append(ids, r.submit(cmd).Id)
			return ids[len(ids)-1]
		}
		var page string
		for round, ahead := range []time.Duration{time.Hour, -time.Hour, -24 * time.Hour, 0} {
			soon := submit(time.Minute, "away")
			running := submit(10*time.Minute, "a", "b", "c", "d", "e")
			for _, a := range agents {
				a.report(running, musterv1.Target_RUNNING)
			}
			late := submit(20*time.Minute, "away")
			if round == 1 {
				list, err := r.cmds.ListCommands(t.Context(), &musterv1.ListCommandsRequest{PageSize: 2})
				if err != nil || list.Commands[1].Id != ids[len(ids)-2] {
					t.Fatalf("%v %v", list, err)
				}
				page = list.NextPageToken
			}
			clock.set(ahead)
			offline := r.told(isOffline)
			time.Sleep(50 * time.Second)
			r.wantState(soon, "away", musterv1.Target_QUEUED)
			time.Sleep(11 * time.Second)
			r.wantState(soon, "away", musterv1.Target_EXPIRED)
			r.wantState(running, "a", musterv1.Target_RUNNING)
			time.Sleep(18 * time.Minute)
			r.wantState(late, "away", musterv1.Target_QUEUED)
			for _, a := range agents {
				a.report(running, musterv1.Target_SUCCEEDED)
				seen := r.wantStatus(a.reg.AgentId, musterv1.Agent_ONLINE).LastSeen.AsTime()
				if ago := clock.now().Sub(seen); ago < 0 || ago > 30*time.Second {
					t.Errorf("last seen %v ago by the clock of now", ago)
				}
			}
			time.Sleep(time.Minute)
			r.wantState(late, "away", musterv1.Target_EXPIRED)
			if got := r.command(running); got.State != musterv1.Command_DONE || got.Counts.Succeeded != 5 {
				t.Errorf("got %v", got)
			}
			if n := r.told(isOffline) - offline; n != 0 {
				t.Errorf("clock set %v ahead: %d agents went offline", ahead, n)
			}
		}
		list, err := r.cmds.ListCommands(t.Context(), &musterv1.ListCommandsRequest{})
		if err != nil || len(list.Commands) != len(ids) {
			t.Fatalf("%d commands %v, want %d", len(list.GetCommands()), err, len(ids))
		}
		for i, cmd := range list.Commands {
			if want := ids[len(ids)-1-i]; cmd.Id != want {
				t.Errorf("at %d is %s, want %s: the newest first", i, cmd.Id, want)
			}
		}
		rest, err := r.cmds.ListCommands(t.Context(), &musterv1.ListCommandsRequest{PageToken: page})
		if err != nil || len(rest.Commands) != 4 || rest.Commands[0].Id != ids[3] {
			t.Errorf("after the page token of before: %v %v", rest, err)
		}

		// Timers keep their pace: a silent agent goes offline when it should.
		agents[0].silent.Store(true)
		agents[0].mute.Store(true)
		time.Sleep(4*time.Minute + 45*time.Second)
		r.wantStatus("a", musterv1.Agent_SUSPECT)
		time.Sleep(30 * time.Second)
		r.wantStatus("a", musterv1.Agent_OFFLINE)
	})
}

func isOffline(e *musterv1.Event) bool { return e.Agent.GetStatus() == musterv1.Agent_OFFLINE }

// The machine of the coordinator sleeps for half an hour: the wall clock goes on
// and timers do not. Nobody is OFFLINE before there was a full grace to speak.
func TestC052CoordinatorSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, clock := newRig(t), &setClock{}
		r.cfg.Now = clock.now
		r.start()
		defer func() { r.stop(); r.store.Close() }()
		a := r.peer("a").join()
		a.silent.Store(true)
		a.mute.Store(true)
		time.Sleep(4 * time.Minute)
		r.wantStatus("a", musterv1.Agent_SUSPECT)
		clock.set(30 * time.Minute)
		time.Sleep(4 * time.Minute) // 8 minutes of silence, by the clock of timers
		r.wantStatus("a", musterv1.Agent_SUSPECT)
		a.beat()
		r.wantStatus("a", musterv1.Agent_ONLINE)
		a.leave()
		time.Sleep(6 * time.Minute)
		r.wantStatus("a", musterv1.Agent_OFFLINE)
	})
}

// The process stands still, for three times what makes an agent OFFLINE and for
// less, again and again: timers and agents' silence are both over when it goes
// on, and still nobody is OFFLINE.
func TestC051PausesOfTheProcess(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		a.silent.Store(true)
		for _, pause := range []time.Duration{15 * time.Minute, 270 * time.Second, 270 * time.Second, 270 * time.Second} {
			synctest.Wait()
			r.c.pulse.mu.Lock() // as if the last look had been before the pause
			r.c.pulse.wall, r.c.pulse.mono = r.c.pulse.wall.Add(-pause), r.c.pulse.mono.Add(-pause)
			r.c.pulse.mu.Unlock()
			ag := r.c.fleet.agents["a"]
			ag.seen.Add(-int64(pause))
			r.c.onSilence(ag) // the timer that fires first
			r.wantStatus("a", musterv1.Agent_ONLINE)
			a.beat()
			time.Sleep(20 * time.Second)
		}
		if n := r.told(isOffline); n != 0 {
			t.Errorf("%d went offline", n)
		}
	})
}

// A hundred agents beat late and unevenly, ten come and go each second, and one
// beats a thousand times a second. The hundred stay, the ten make a bounded
// number of events, and the one costs no write.
func TestC054FlappingAndJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.HeartbeatInterval, r.cfg.OfflineAfter = 10*time.Second, 35*time.Second
		s := &counting{Store: r.store}
		r.store = s
		r.start()
		defer func() { r.stop(); r.store.Close() }()
		steady := jittering(r, 100, 30*time.Second)
		defer steady()
		fast := r.peer("fast").join()
		defer fast.leave()
		synctest.Wait()
		before := s.n.Load()
		for range 10 * 1000 {
			fast.beat()
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if n := s.n.Load() - before; n != 0 {
			t.Errorf("%d commits by beats", n)
		}
		flapping := make([]*peer, 10)
		for range 5 * 60 {
			for i := range flapping {
				flapping[i] = r.peer(string(rune('a' + i))).join()
			}
			time.Sleep(500 * time.Millisecond)
			for _, p := range flapping {
				p.leave()
			}
			time.Sleep(500 * time.Millisecond)
		}
		flaps := r.told(func(e *musterv1.Event) bool { return len(e.Agent.GetId()) == 1 })
		if limit := 2 * 10 * int(registerBurst+comesPerSecond*300+1); flaps > limit || flaps < limit/2 {
			t.Errorf("%d events by ten agents in five minutes, want at most %d", flaps, limit)
		}
		offline := r.told(func(e *musterv1.Event) bool { return isOffline(e) && e.Agent.Id >= "steady" })
		if offline > 0 {
			t.Errorf("%d of the hundred went offline", offline)
		}
	})
}

// jittering is n agents that beat each period, give or take 5 %.
func jittering(r *rig, n int, period time.Duration) (stop func()) {
	var peers []*peer
	ticks := make([]*time.Timer, n)
	for i := range n {
		p := r.peer("steady-" + string(rune('0'+i/10)) + string(rune('0'+i%10)))
		p.silent.Store(true)
		p.join()
		peers = append(peers, p)
		ticks[i] = time.AfterFunc(period, func() {
			p.beat()
			ticks[i].Reset(period + time.Duration(i%11-5)*period/100)
		})
	}
	return func() {
		for i, p := range peers {
			ticks[i].Stop()
			p.leave()
		}
	}
}
