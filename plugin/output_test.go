package plugin

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

func TestCaptureKeepsHeadAndTail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := 2 * rapid.IntRange(1, 20).Draw(t, "half")
		c := newCapture(limit)
		var all []byte
		for _, piece := range rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 50)).Draw(t, "pieces") {
			_, _ = c.Write(piece)
			all = append(all, piece...)
		}
		want, head := all, 0
		if len(all) > limit {
			head = limit / 2
			want = append(append([]byte(nil), all[:head]...), all[len(all)-limit/2:]...)
		}
		o := c.output()
		if !bytes.Equal(o.Kept, want) || o.Size != int64(len(all)) || o.Head != head || o.Truncated() != (len(all) > limit) {
			t.Fatalf("limit %d, wrote %v: got %+v", limit, all, o)
		}
	})
}
