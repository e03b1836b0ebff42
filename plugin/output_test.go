package plugin

import (
	"bytes"
	"fmt"
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

func TestHeadCanBeReadWhileItGrows(t *testing.T) {
	t.Parallel()
	p := sh(t, `printf abc; read -r x </proc/self/fd/0; printf defgh; printf err >&2; printf 'ijklmnopqrstuvwxyz'`)
	p.OutputCap = 10
	var stdout, stderr Head
	grown := make(chan struct{}, 100)
	p.Live = func(o, e Head) { stdout, stderr = o, e }
	p.Grown = func() { grown <- struct{}{} }
	done := make(chan Outcome)
	go func() { done <- Run(t.Context(), p) }()
	<-grown
	o := <-done
	if got := fmt.Sprintf("%s|%s|%s|%s|%s", stdout.After(0, 100), stdout.After(1, 2), stdout.After(5, 1), stdout.After(9, 1), stderr.After(0, 9)); got != "abcde|bc|||err" {
		t.Errorf("got %s", got)
	}
	if string(o.Stdout.Kept) != "abcdevwxyz" {
		t.Errorf("kept %q", o.Stdout.Kept)
	}
}
