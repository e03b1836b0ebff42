package coordinator

import (
	"bytes"
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestOutputIsStoredBeforeItsReportIsTaken(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		cmd := r.submit(to("a"))
		final := &musterv1.Target{CommandId: cmd.Id, AgentId: "a", State: musterv1.Target_SUCCEEDED, Stdout: &musterv1.Output{Kept: 100_000}}
		a.say(&musterv1.OutputChunk{CommandId: cmd.Id, Stream: musterv1.Stream_STDOUT, Data: bytes.Repeat([]byte("x"), 64<<10)})
		a.say(final)
		if n := a.lastNack(); n.Reason != musterv1.Nack_RETRY || n.Field != cmd.Id || n.Type != "muster.v1.Target" {
			t.Fatalf("half the output came, and the Nack is %v", n)
		}
		a.wantAcked()
		r.wantState(cmd.Id, "a", musterv1.Target_SENT)
		a.say(&musterv1.OutputChunk{CommandId: cmd.Id, Stream: musterv1.Stream_STDOUT, Data: bytes.Repeat([]byte("y"), 64<<10)})
		a.say(&musterv1.OutputChunk{CommandId: cmd.Id, Stream: musterv1.Stream_STDOUT, Offset: 64 << 10, Data: bytes.Repeat([]byte("z"), 100_000-64<<10)})
		a.say(final)
		a.wantAcked(cmd.Id)
		if got := r.output(cmd.Id, "a"); len(got) != 100_000 || got[0] != 'y' || got[99_999] != 'z' {
			t.Fatalf("read %d bytes back", len(got))
		}
	})
}

// output reads what is kept of stdout.
func (r *rig) output(id, agent string) []byte {
	r.t.Helper()
	out := &chunks{ctx: r.t.Context()}
	if err := r.cmds.ReadOutput(&musterv1.ReadOutputRequest{CommandId: id, AgentId: agent, Stream: musterv1.Stream_STDOUT}, out); err != nil {
		r.t.Fatal(err)
	}
	return out.b
}

type chunks struct {
	grpc.ServerStream
	ctx context.Context
	b   []byte
}

func (c *chunks) Context() context.Context           { return c.ctx }
func (c *chunks) Send(m *musterv1.OutputChunk) error { c.b = append(c.b, m.Data...); return nil }

// An agent that did not hear the acknowledgement sends everything again: while
// the command is open, and when it has ended. It must be let go, and what is
// stored stays.
func TestReportWithOutputIsAcknowledgedAgain(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		b := r.peer("b").join()
		defer b.leave()
		cmd := r.submit(to("a", "b"))
		var acked []string
		tell := func(text string) {
			a.say(&musterv1.OutputChunk{CommandId: cmd.Id, Stream: musterv1.Stream_STDOUT, Data: []byte(text)})
			a.say(&musterv1.Target{CommandId: cmd.Id, AgentId: "a", State: musterv1.Target_SUCCEEDED, Stdout: &musterv1.Output{Kept: uint32(len(text))}})
			acked = append(acked, cmd.Id)
			a.wantAcked(acked...)
		}
		tell("first")
		tell("again")
		b.say(&musterv1.Target{CommandId: cmd.Id, AgentId: "b", State: musterv1.Target_SUCCEEDED})
		b.wantAcked(cmd.Id)
		if got := r.command(cmd.Id).State; got != musterv1.Command_DONE {
			t.Fatalf("the command is %v", got)
		}
		tell("and once more")
		if got := string(r.output(cmd.Id, "a")); got != "first" {
			t.Errorf("the output is %q", got)
		}
	})
}

// What an interrupted run had sent is not the output of the target.
func TestOutputEndsWhereItsReportSays(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		cmd := r.submit(to("a"))
		a.say(&musterv1.OutputChunk{CommandId: cmd.Id, Stream: musterv1.Stream_STDOUT, Data: []byte("first run")})
		if got := r.output(cmd.Id, "a"); string(got) != "first run" {
			t.Errorf("while it runs: %q", got)
		}
		a.say(&musterv1.OutputChunk{CommandId: cmd.Id, Stream: musterv1.Stream_STDOUT, Data: []byte("2nd")})
		a.say(&musterv1.Target{CommandId: cmd.Id, AgentId: "a", State: musterv1.Target_SUCCEEDED, Stdout: &musterv1.Output{Kept: 3}})
		if got := r.output(cmd.Id, "a"); string(got) != "2nd" {
			t.Errorf("at the end: %q", got)
		}
		cmd = r.submit(to("a"))
		a.say(&musterv1.OutputChunk{CommandId: cmd.Id, Stream: musterv1.Stream_STDOUT, Data: []byte("cut off")})
		a.report(cmd.Id, musterv1.Target_INTERRUPTED)
		if got := r.output(cmd.Id, "a"); len(got) != 0 {
			t.Errorf("interrupted: %q", got)
		}
	})
}

func TestOutputIsReadFromAnOffsetAndFollowed(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		cmd := r.submit(to("a"))
		chunk := func(off int, s string) {
			a.say(&musterv1.OutputChunk{CommandId: cmd.Id, Stream: musterv1.Stream_STDOUT, Offset: uint32(off), Data: []byte(s)})
		}
		chunk(0, "hello ")
		out := &chunks{ctx: t.Context()}
		done := make(chan error, 1)
		go func() {
			done <- r.cmds.ReadOutput(&musterv1.ReadOutputRequest{CommandId: cmd.Id, AgentId: "a", Stream: musterv1.Stream_STDOUT, Offset: 3, Follow: true}, out)
		}()
		time.Sleep(time.Second)
		chunk(6, "big ")
		time.Sleep(time.Second)
		chunk(10, "world")
		a.say(&musterv1.Target{CommandId: cmd.Id, AgentId: "a", State: musterv1.Target_SUCCEEDED, Stdout: &musterv1.Output{Kept: 15}})
		if err := <-done; err != nil || string(out.b) != "lo big world" {
			t.Errorf("followed %q, %v", out.b, err)
		}
	})
}

// Output that starts over again and again, cut otherwise each time, leaves
// nothing behind and has a limit.
func TestOutputThatStartsOverIsBounded(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		cmd := r.submit(to("a"))
		chunk := func(off, n int) {
			a.say(&musterv1.OutputChunk{CommandId: cmd.Id, Stream: musterv1.Stream_STDOUT, Offset: uint32(off), Data: make([]byte, n)})
		}
		for try := range 200 {
			chunk(0, 100+try)
			for off := 100 + try; off < 1000; off += 100 {
				chunk(off, 100)
			}
		}
		if n := len(r.keys(spaceBulk)); n > 20 {
			t.Errorf("%d rows are left of one output", n)
		}
		time.Sleep(2 * time.Minute)
		chunk(0, maxChunk)
		for off := maxChunk; off <= maxOutput; off += maxChunk {
			chunk(off, maxChunk)
		}
		if got := r.output(cmd.Id, "a"); len(got) > maxOutput {
			t.Errorf("%d bytes are kept", len(got))
		}
	})
}
