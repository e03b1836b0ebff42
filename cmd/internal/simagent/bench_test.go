package simagent

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// BenchmarkCommand is what a simulated agent itself costs for a command, from the
// bytes of it to those of the answers and the acknowledgement: all but the sockets.
func BenchmarkCommand(b *testing.B) {
	f, err := New(Config{Agents: 1, ResultSize: 300, Dial: (&rig{}).dial})
	if err != nil {
		b.Fatal(err)
	}
	near, far := bustest.Pipe()
	defer near.Close()
	defer far.Close()
	r := &endless{next: func(n int) (out []byte) {
		id := fmt.Sprintf("01JA0000000000000000%06d", n)
		out, _ = appendMessage(out, &musterv1.Command{Id: id, Type: "exec", Input: []byte(`{"argv":["true"]}`), ExpiresIn: durationpb.New(1)})
		out, _ = appendMessage(out, &musterv1.TargetAck{CommandIds: []string{id}})
		return out
	}}
	nc := readFrom{deaf{near}, r}
	l := &link{nc: nc, in: newInbox(nc)}
	a := f.agents[0]
	a.use(l)
	if err := a.onRegistered(l, &musterv1.Registered{}); err != nil {
		b.Fatal(err)
	}
	defer a.stop()
	b.ReportAllocs()
	for b.Loop() {
		for range 2 {
			m, err := l.in.message()
			if err != nil {
				b.Fatal(err)
			}
			if err := a.take(l, m); err != nil {
				b.Fatal(err)
			}
			l.flush()
		}
	}
}

// endless reads what next makes, for ever.
type endless struct {
	next func(n int) []byte
	n    int
	left []byte
}

func (e *endless) Read(b []byte) (int, error) {
	if len(e.left) == 0 {
		e.left = e.next(e.n)
		e.n++
	}
	n := copy(b, e.left)
	e.left = e.left[n:]
	return n, nil
}
