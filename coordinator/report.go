package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

var errOutputMissing = errors.New("coordinator: the output that goes with this report is not stored")

// onTarget takes what an agent says of one of its commands. States on the way
// are only noted; a final one is stored and then acknowledged.
func (c *Coordinator) onTarget(p *bus.Peer, _ *musterv1.Envelope, t *musterv1.Target) error {
	s, a, err := c.from(p)
	if err != nil {
		return err
	}
	if err := c.checkTarget(a, t); err != nil {
		return err
	}
	c.told(a, t.JournalSeq)
	if !isFinal(t.State) {
		if r, open := c.ledger.find(t.CommandId, a.id); open && c.ledger.progress(r, t.State) && t.State == musterv1.Target_RUNNING {
			c.tellTargets(&musterv1.Target{CommandId: t.CommandId, AgentId: a.id, State: t.State, StartTime: t.StartTime})
		}
		return nil
	}
	if t.State == musterv1.Target_REJECTED {
		c.fleet.noteRefusal(a, "command "+t.CommandId+" rejected: "+t.Reason)
	}
	c.record(s, a.id, t)
	return nil
}

// record hands a final report to the batcher. The first one wins; a repeat is
// acknowledged like the first, so that the agent can forget it.
func (c *Coordinator) record(s *session, agent string, t *musterv1.Target) {
	res := resultOf(t)
	w, first := &write{size: len(res.value) + 128, blind: !hasOutput(t)}, false
	w.ops = func(ctx context.Context) ([]store.Op, error) {
		r, open := c.ledger.find(t.CommandId, agent)
		first, w.results = open && !isFinal(c.ledger.state(r)), nil
		switch lacks := s.lacks(t); {
		case !first && lacks: // nobody keeps output that comes after the end
			return c.afterwards(ctx, withoutOutput(t))
		case !first:
			return c.afterwards(ctx, t)
		case lacks:
			return nil, errOutputMissing
		}
		w.results = []result{res}
		return nil, nil
	}
	w.done = func(skipped []bool, err error) {
		if err == nil && first && skipped[0] {
			// Final in the store, and the ledger did not know yet: look again.
			c.batch.must(&write{ops: func(ctx context.Context) ([]store.Op, error) { return c.afterwards(ctx, t) },
				done: func(_ []bool, err error) { c.recorded(s, t, true, err) }})
			return
		}
		c.recorded(s, t, len(skipped) == 0 || skipped[0], err)
	}
	if err := c.enqueue(s, w); err != nil {
		c.metrics.dropped("report") // no acknowledgement: the agent sends it again
	}
}

// recorded answers a report that was stored, or was not.
func (c *Coordinator) recorded(s *session, t *musterv1.Target, repeat bool, err error) {
	id := t.CommandId
	switch {
	case errors.Is(err, errOutputMissing):
		quiet(s.peer.Send(&musterv1.Nack{Type: "muster.v1.Target", Reason: musterv1.Nack_RETRY, Field: id, Detail: err.Error()}))
		s.forget(id)
	case err != nil:
		c.log.Error("report not stored; the agent sends it again", "agent", t.AgentId, "cmd", id, "err", err)
		c.metrics.dropped("report")
	default:
		if repeat {
			c.metrics.repeated()
		}
		s.forget(id)
		c.acks.add(s, id)
	}
}

// afterwards decides about a report whose target is final, or for which no open
// command is known: it comes late, or again, or for nothing.
func (c *Coordinator) afterwards(ctx context.Context, t *musterv1.Target) ([]store.Op, error) {
	have, err := c.finals(ctx, t.CommandId, t.AgentId)
	if err != nil {
		return nil, err
	}
	if have[0] == nil {
		c.warn("report for a command that this agent was not given; acknowledged and dropped", "agent", t.AgentId, "cmd", fmt.Sprintf("%.40q", t.CommandId))
		c.metrics.dropped("orphan")
		return nil, nil
	}
	return c.lateOps(have[0], t)
}

// lateOps keeps a report beside a final state that the coordinator had set
// without the agent's word.
func (c *Coordinator) lateOps(first, t *musterv1.Target) ([]store.Op, error) {
	if toldFinal(first.State) {
		if first.State != t.State || first.GetExitCode() != t.GetExitCode() {
			c.warn("a second report differs from the first, which stays", "agent", t.AgentId, "cmd", t.CommandId, "first", first.State.String(), "second", t.State.String())
		}
		return nil, nil
	}
	return []store.Op{{Kind: store.PutIfAbsent, Space: spaceHistory, Key: lateKey(t.CommandId, t.AgentId), Value: encode(t)}}, nil
}

// withoutOutput is t when its output is not kept.
func withoutOutput(t *musterv1.Target) *musterv1.Target {
	t = proto.CloneOf(t)
	for _, o := range []*musterv1.Output{t.Stdout, t.Stderr} {
		if o.GetKept() > 0 {
			o.Kept, o.Head, o.Truncated = 0, 0, true
		}
	}
	return t
}

// toldFinal reports whether s is a final state by the agent's own word.
func toldFinal(s musterv1.Target_State) bool {
	return s >= musterv1.Target_SUCCEEDED && s <= musterv1.Target_REJECTED
}

func (c *Coordinator) checkTarget(a *agent, t *musterv1.Target) error {
	bad := func(field, format string, args ...any) error {
		return &bus.NackError{Reason: musterv1.Nack_INVALID, Field: field, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case t.CommandId == "":
		return bad("command_id", "a command id is needed")
	case t.AgentId != a.id:
		return bad("agent_id", "%.150q is not the agent that registered on this link", t.AgentId)
	case t.State < musterv1.Target_RECEIVED || t.State > musterv1.Target_EXPIRED:
		// The agent is newer, or wrong. The target stays as it is: a state that is
		// known may follow, and if none does it is LOST when its time is over.
		c.fleet.noteRefusal(a, fmt.Sprintf("command %.40q: %s is not a state that an agent tells", t.CommandId, t.State))
		return bad("state", "%s is not a state that an agent tells", t.State)
	case !isCommandID(t.CommandId):
		return bad("command_id", "%.40q is not a command id", t.CommandId)
	}
	t.Reason = cutText(t.Reason, maxReason)
	if len(t.Result) > 0 && (len(t.Result) > maxResult || !json.Valid(t.Result)) {
		return bad("result", "JSON of at most %d bytes is needed", maxResult)
	}
	if !validTime(t.StartTime) {
		return bad("start_time", "not a time")
	}
	if !validTime(t.EndTime) {
		return bad("end_time", "not a time")
	}
	if t.Late != nil {
		return bad("late", "set by the coordinator")
	}
	if n := proto.Size(t); n > maxTarget {
		return bad("", "%d bytes, at most %d", n, maxTarget)
	}
	return nil
}

// validTime reports whether ts is absent or within the years 1 to 9999.
func validTime(ts *timestamppb.Timestamp) bool { return ts == nil || ts.IsValid() }

// cutText cuts s to at most n bytes, between two characters.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// progress is how much output of one command has come on one link.
type progress struct {
	queued [3]uint32 // by stream: bytes handed to the batcher, in order
	failed bool      // a chunk was not stored: the rest is worth nothing
}

// lacks reports whether chunks that t speaks of are not there. It is asked by
// the batcher, after or together with the chunks.
func (s *session) lacks(t *musterv1.Target) bool {
	if !hasOutput(t) {
		return false
	}
	stdout, stderr := t.GetStdout().GetKept(), t.GetStderr().GetKept()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.outputs[t.CommandId]
	return out == nil || out.failed || out.queued[musterv1.Stream_STDOUT] != stdout || out.queued[musterv1.Stream_STDERR] != stderr
}

func hasOutput(t *musterv1.Target) bool { return t.GetStdout().GetKept()+t.GetStderr().GetKept() > 0 }

func (s *session) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.outputs, id)
}

// onChunk stores a piece of output. Chunks come in order; a first one starts over.
func (c *Coordinator) onChunk(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.OutputChunk) error {
	s, a, err := c.from(p)
	if err != nil {
		return err
	}
	bad := func(field, detail string) error {
		return &bus.NackError{Reason: musterv1.Nack_INVALID, Field: field, Detail: detail}
	}
	switch {
	case m.Stream != musterv1.Stream_STDOUT && m.Stream != musterv1.Stream_STDERR:
		return bad("stream", "STDOUT or STDERR is needed")
	case len(m.Data) == 0 || len(m.Data) > maxChunk:
		return bad("data", fmt.Sprintf("%d bytes, want 1 to %d", len(m.Data), maxChunk))
	}
	if r, open := c.ledger.find(m.CommandId, a.id); !open || toldFinal(c.ledger.state(r)) {
		return nil // ended or never ours: its report is answered without
	}
	out := s.chunk(m)
	if out == nil {
		c.metrics.dropped("chunk")
		return nil // out of order or too much: the report will be refused and all sent again
	}
	put := store.Op{Kind: store.Put, Space: spaceBulk, Key: outKey(m.CommandId, a.id, uint32(m.Stream), m.Offset), Value: m.Data}
	w := &write{
		size: len(m.Data) + 128,
		ops:  fixed(put),
		done: func(_ []bool, err error) {
			if err != nil {
				s.chunkFailed(out)
			}
		},
	}
	if m.Offset == 0 {
		w.ops = func(ctx context.Context) ([]store.Op, error) { return c.startOver(ctx, put) }
	}
	if err := c.enqueue(s, w); err != nil {
		s.chunkFailed(out)
		c.metrics.dropped("chunk")
	}
	return nil
}

// startOver writes a stream's first chunk in place of all that an earlier try
// had left of it.
func (c *Coordinator) startOver(ctx context.Context, first store.Op) ([]store.Op, error) {
	page, err := c.store.Scan(ctx, spaceBulk, store.Range{Prefix: first.Key[:len(first.Key)-8], After: first.Key, Limit: store.MaxOps - 100})
	if err != nil {
		return nil, err
	}
	ops := []store.Op{first}
	for _, kv := range page.Items {
		ops = append(ops, store.Op{Kind: store.Delete, Space: spaceBulk, Key: kv.Key})
	}
	return ops, nil
}

// chunk counts a chunk and returns its record, or nil if it is out of order.
func (s *session) chunk(m *musterv1.OutputChunk) *progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outputs == nil {
		s.outputs = map[string]*progress{}
	}
	out := s.outputs[m.CommandId]
	if m.Offset == 0 && out != nil && out.queued[m.Stream] > 0 && !s.restarts.take(restartsPerSecond, restartBurst) {
		out.failed = true // a stream that always starts over is no output
		return nil
	}
	if out == nil || out.failed && m.Offset == 0 {
		out = &progress{}
		s.outputs[m.CommandId] = out
	}
	if m.Offset == 0 {
		out.queued[m.Stream] = 0
	}
	if out.queued[m.Stream] != m.Offset || int(m.Offset)+len(m.Data) > maxOutput {
		out.failed = true
		return nil
	}
	out.queued[m.Stream] += uint32(len(m.Data))
	return out
}

func (s *session) chunkFailed(out *progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out.failed = true
}

// onBusy puts off a command that an agent's queue has no room for.
func (c *Coordinator) onBusy(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Busy) error {
	_, a, err := c.from(p)
	if err != nil {
		return err
	}
	if r, open := c.ledger.find(m.CommandId, a.id); open {
		after := min(max(m.RetryAfter.AsDuration(), time.Second), time.Minute)
		c.fleet.noteRefusal(a, "busy: its queue is full; command "+m.CommandId+" is sent again in "+after.String())
		c.ledger.hold(r, time.Now().Add(after))
		c.dispatch.wakeAt(time.Now().Add(after), a.id)
	}
	return nil
}

// onNack notes what an agent could not use.
func (c *Coordinator) onNack(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.Nack) error {
	if a := sessionOf(p).registered(); a != nil {
		c.fleet.noteRefusal(a, fmt.Sprintf("%.64q not taken: %s %.200s", m.Type, m.Reason, m.Detail))
	}
	c.warn("agent did not take a message", "addr", p.Addr(), "type", fmt.Sprintf("%.64q", m.Type), "reason", m.Reason.String(), "detail", fmt.Sprintf("%.200q", m.Detail))
	return nil
}
