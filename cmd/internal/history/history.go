// Package history fills a store file with commands that have ended, fast, so
// that a coordinator can be tried on years of work.
package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Size of a history.
type Size struct {
	Agents   int // known, named agent-000000 and so on
	Commands int // ended
	Targets  int // of each command; default 1
	Output   int // bytes of stdout that each target has written; at most 64 KiB
}

const (
	span    = 30 * 24 * time.Hour // the commands were submitted over this time, until now
	writers = 8                   // batches under way: the store makes one transaction of those that wait
)

// Make adds a history to the store file at path, or makes the file.
func Make(ctx context.Context, path string, size Size) error {
	size.Targets = max(size.Targets, 1)
	db, err := boltstore.Open(path, boltstore.Options{}, coordinator.Spaces...)
	if err != nil {
		return err
	}
	defer db.Close()
	batches := make(chan store.Batch, writers)
	g, ctx := errgroup.WithContext(ctx)
	for range writers {
		g.Go(func() error {
			for b := range batches {
				if _, err := db.Commit(ctx, b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(batches)
		f := filler{ctx: ctx, batches: batches}
		for i := range size.Agents {
			if err := f.add(coordinator.KnownAgent(agent(i))); err != nil {
				return err
			}
		}
		made := maker{size: size, start: time.Now().Add(-span), random: rand.New(rand.NewPCG(1, 2))}
		for i := range size.Commands {
			if err := f.add(made.command(i).Ops()...); err != nil {
				return err
			}
		}
		return f.flush()
	})
	return g.Wait()
}

// filler makes batches that keep the store's limits.
type filler struct {
	ctx     context.Context
	batches chan<- store.Batch
	ops     []store.Op
	bytes   int
}

func (f *filler) add(ops ...store.Op) error {
	for _, o := range ops {
		n := len(o.Key) + len(o.Value)
		if len(f.ops) == store.MaxOps || f.bytes+n > store.MaxBytes {
			if err := f.flush(); err != nil {
				return err
			}
		}
		f.ops, f.bytes = append(f.ops, o), f.bytes+n
	}
	return nil
}

func (f *filler) flush() error {
	select {
	case f.batches <- store.Batch{Ops: f.ops}:
		f.ops, f.bytes = nil, 0
		return nil
	case <-f.ctx.Done():
		return context.Cause(f.ctx)
	}
}

func agentID(i int) string { return fmt.Sprintf("agent-%06d", i) }

func agent(i int) *musterv1.Agent {
	now := timestamppb.Now()
	return &musterv1.Agent{
		Id: agentID(i), Status: musterv1.Agent_OFFLINE, Type: "muster-agentd",
		Tags:       map[string]string{"env": []string{"prod", "test", "dev"}[i%3], "rack": fmt.Sprint("r", i%40)},
		Attributes: &musterv1.Attributes{Version: "1.0", Hostname: agentID(i), Os: "linux", Arch: "amd64", Ip: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)},
		LastSeen:   now, RegisterTime: now, StartupTime: now, CommandTypes: []string{"exec", "ping"},
	}
}

type maker struct {
	size   Size
	start  time.Time
	random *rand.Rand
}

func (m *maker) command(i int) *coordinator.Ended {
	at := m.start.Add(time.Duration(float64(span) * float64(i) / float64(m.size.Commands)))
	id := ulid.ULID{}
	_ = id.SetTime(ulid.Timestamp(at)) // a time of this century fits
	for n := range 10 {
		id[6+n] = byte(m.random.Uint32())
	}
	begin, end := timestamppb.New(at), timestamppb.New(at.Add(2*time.Second))
	cmd := &musterv1.Command{
		Id: id.String(), Type: "exec", Name: fmt.Sprint("job ", i%100), Input: []byte(`{"argv":["sh","-c","echo done"]}`),
		Labels: map[string]string{"job": fmt.Sprint(i % 100)}, Timeout: durationpb.New(time.Minute), ExpiresIn: durationpb.New(time.Hour),
		ExpireTime: timestamppb.New(at.Add(time.Hour)), WhenOffline: musterv1.Command_QUEUE, State: musterv1.Command_DONE,
		Counts: &musterv1.Counts{Total: uint32(m.size.Targets)}, CreateTime: begin, EndTime: end,
	}
	e := &coordinator.Ended{Command: cmd}
	first := i % max(m.size.Agents-m.size.Targets+1, 1)
	for n := range m.size.Targets {
		t := &musterv1.Target{CommandId: cmd.Id, AgentId: agentID(first + n), State: musterv1.Target_SUCCEEDED,
			ExitCode: new(int32), StartTime: begin, EndTime: end}
		if i%10 == 0 {
			*t.ExitCode, t.State, t.Reason = 3, musterv1.Target_FAILED, "exit code 3"
			cmd.Counts.Failed++
		} else {
			cmd.Counts.Succeeded++
		}
		if m.size.Output > 0 {
			text := m.text(m.size.Output)
			t.Stdout = &musterv1.Output{Size: float64(len(text)), Kept: uint32(len(text))}
			e.Stdout = append(e.Stdout, text)
		}
		e.Targets = append(e.Targets, t)
	}
	return e
}

// text is n bytes of lines that do not compress to nothing.
func (m *maker) text(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = ' ' + byte(m.random.Uint32()%64)
		if i%64 == 63 {
			b[i] = '\n'
		}
	}
	return b
}
