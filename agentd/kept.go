package agentd

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/plugin"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// outputs is the folder with the kept output of commands that are not settled:
// a file for each, standard output first, then standard error.
type outputs struct{ dir string }

const chunkSize = 64 << 10

func openOutputs(dir string) (outputs, error) {
	o := outputs{filepath.Join(dir, "output")}
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return o, fmt.Errorf("kept output: %w", err)
	}
	return o, nil
}

func (o outputs) path(id string) string { return filepath.Join(o.dir, id) }

// save makes the kept output of a command durable and describes it in t. When
// it cannot be stored, it is left out: the state matters more.
func (o outputs) save(t *musterv1.Target, stdout, stderr plugin.Output) error {
	t.Stdout, t.Stderr = describe(stdout), describe(stderr)
	if len(stdout.Kept)+len(stderr.Kept) == 0 {
		return nil
	}
	err := o.write(t.CommandId, stdout.Kept, stderr.Kept)
	if err != nil {
		_ = os.Remove(o.path(t.CommandId))
		dropOutput(t, "its output could not be stored on the agent")
	}
	return err
}

func (o outputs) write(id string, parts ...[]byte) error {
	f, err := os.OpenFile(o.path(id), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if _, err = f.Write(p); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return syncDir(o.dir)
}

// open returns the chunks of t's kept output. When they are not what t says,
// it returns none, and a t that says so.
func (o outputs) open(t *musterv1.Target) (*chunks, *musterv1.Target) {
	c := &chunks{id: t.CommandId}
	c.size = [2]int64{int64(t.GetStdout().GetKept()), int64(t.GetStderr().GetKept())}
	want := c.size[0] + c.size[1]
	if want == 0 {
		return c, t
	}
	f, err := os.Open(o.path(t.CommandId))
	if err == nil {
		if info, serr := f.Stat(); serr == nil && info.Size() == want {
			c.f = f
			return c, t
		}
		f.Close()
	}
	t = proto.CloneOf(t)
	dropOutput(t, "its output was lost on the agent")
	return &chunks{}, t
}

func (o outputs) remove(id string) { _ = os.Remove(o.path(id)) }

// sweep removes files of commands that are not held.
func (o outputs) sweep(held func(id string) bool) {
	entries, _ := os.ReadDir(o.dir)
	for _, e := range entries {
		if !held(e.Name()) {
			o.remove(e.Name())
		}
	}
}

// chunks reads kept output piece by piece.
type chunks struct {
	id   string
	f    *os.File
	size [2]int64 // of each stream
	off  [2]int64 // how much of it was read
}

// skip leaves out what was told while the program ran, which is the beginning
// of what is kept.
func (c *chunks) skip(t told) {
	for s, n := range t {
		c.off[s] = min(int64(n), c.size[s])
	}
}

// next returns the next chunk, nil after the last.
func (c *chunks) next() (*musterv1.OutputChunk, error) {
	s := 0
	if c.off[0] == c.size[0] {
		s = 1
	}
	off := c.off[s]
	if off == c.size[s] {
		return nil, nil
	}
	at := off
	if s == 1 {
		at += c.size[0]
	}
	b := make([]byte, min(int64(untilEdge(int(off))), c.size[s]-off))
	if _, err := c.f.ReadAt(b, at); err != nil && err != io.EOF {
		return nil, err
	}
	c.off[s] += int64(len(b))
	return &musterv1.OutputChunk{CommandId: c.id, Stream: musterv1.Stream(s + 1), Offset: uint32(off), Data: b}, nil
}

func (c *chunks) close() {
	if c.f != nil {
		c.f.Close()
	}
}

func describe(o plugin.Output) *musterv1.Output {
	return &musterv1.Output{
		Size: float64(o.Size), Kept: uint32(len(o.Kept)), Sha256: o.SHA256,
		Truncated: o.Truncated(), Head: uint32(o.Head),
	}
}

// dropOutput makes t say that nothing of the output was kept.
func dropOutput(t *musterv1.Target, why string) {
	for _, o := range []*musterv1.Output{t.Stdout, t.Stderr} {
		if o.GetKept() > 0 {
			o.Kept, o.Head, o.Truncated = 0, 0, true
		}
	}
	if t.Reason != "" {
		why = t.Reason + "; " + why
	}
	t.Reason = reason(why)
}
