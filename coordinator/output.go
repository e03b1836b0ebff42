package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// followEvery is how often a follower looks for new output.
const followEvery = 250 * time.Millisecond

var errGap = errors.New("coordinator: output has a gap")

// ReadOutput sends what is kept of one stream, in order, from an offset on;
// with follow, until the target is final.
func (s *commandService) ReadOutput(req *musterv1.ReadOutputRequest, out musterv1.Commands_ReadOutputServer) error {
	ctx := out.Context()
	if req.Stream != musterv1.Stream_STDOUT && req.Stream != musterv1.Stream_STDERR {
		return invalid("stream", "stdout or stderr is needed")
	}
	if err := s.isTarget(ctx, req.CommandId, req.AgentId); err != nil {
		return err
	}
	for next := req.Offset; ; {
		final, end, err := s.extent(ctx, req) // looked at first: what is stored later is of a later look
		if err != nil {
			return err
		}
		if next, err = s.sendOutput(ctx, req, next, end, out.Send); err != nil {
			return err
		}
		if final || !req.Follow {
			return nil
		}
		t := time.NewTimer(followEvery)
		select {
		case <-t.C:
		case <-s.quit:
			t.Stop()
			return nil
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
	}
}

// extent says whether the target is final, and how many bytes its output has:
// what was stored of an earlier run, or of one that was interrupted, is not part
// of it. Where no agent told, all that is there counts.
func (s *commandService) extent(ctx context.Context, req *musterv1.ReadOutputRequest) (final bool, end uint32, err error) {
	ts, err := s.results(ctx, req.CommandId, []string{req.AgentId})
	if err != nil {
		return false, 0, err
	}
	switch t := ts[0]; {
	case !isFinal(t.State):
		return false, math.MaxUint32, nil
	case t.State > musterv1.Target_REJECTED:
		return true, math.MaxUint32, nil
	case req.Stream == musterv1.Stream_STDOUT:
		return true, t.GetStdout().GetKept(), nil
	default:
		return true, t.GetStderr().GetKept(), nil
	}
}

// sendOutput sends the stored bytes from offset next on, up to end, and returns
// where they end.
func (s *commandService) sendOutput(ctx context.Context, req *musterv1.ReadOutputRequest, next, limit uint32, send func(*musterv1.OutputChunk) error) (uint32, error) {
	prefix := outPrefix(req.CommandId, req.AgentId, uint32(req.Stream))
	after := []byte(nil)
	if start := int64(next) - maxChunk; start > 0 { // a chunk that reaches next cannot start before
		after = outKey(req.CommandId, req.AgentId, uint32(req.Stream), uint32(start)-1)
	}
	first := true
	err := eachRow(ctx, s.c.store, spaceBulk, prefix, after, func(kv store.KV) error {
		off64, err := strconv.ParseUint(strings.TrimPrefix(string(kv.Key), string(prefix)), 16, 32)
		if err != nil {
			return fmt.Errorf("row %q: %w", kv.Key, err)
		}
		off, end := uint32(off64), uint32(off64)+uint32(len(kv.Value))
		switch {
		case end <= next, next >= limit:
			return nil
		case off > next:
			return errGap // the rest is not there yet
		case off < next && !first:
			return errGap // of an earlier try, cut otherwise
		}
		first = false
		data := kv.Value[next-off:]
		data = data[:min(len(data), int(limit-next))]
		if err := send(&musterv1.OutputChunk{CommandId: req.CommandId, Stream: req.Stream, Offset: next, Data: data}); err != nil {
			return err
		}
		next += uint32(len(data))
		return nil
	})
	if errors.Is(err, errGap) {
		err = nil
	}
	return next, err
}
