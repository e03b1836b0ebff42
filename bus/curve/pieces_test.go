package curve

import (
	"bytes"
	"errors"
	"testing"
)

// The pieces put together are what Seal makes at once.
func TestPiecesAreOneMessage(t *testing.T) {
	e := newExchange(t)
	s := e.clientSession
	for _, room := range []int{1 << 10, 1<<10 + 37, 16 << 10} {
		buf := make([]byte, room)
		for _, n := range append([]int{991, 992, 993, 1024 - 33, 1024 - 32, 2048, 16<<10 - 33, 16 << 10, 1 << 20}, sizes...) {
			payload := bytes.Repeat([]byte("muster"), n/6+1)[:n]
			want, err := s.Seal(nil, More, payload)
			if err != nil {
				t.Fatal(err)
			}
			s.sealed--
			var got []byte
			err = s.SealPieces(buf, More, payload, func(piece []byte) error {
				if len(piece) > room || len(piece) == 0 {
					t.Fatalf("%d bytes: a piece of %d", n, len(piece))
				}
				got = append(got, piece...)
				return nil
			})
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes by %d: another MESSAGE, error %v", n, room, err)
			}
		}
	}
}

func TestPiecesStopAtAnError(t *testing.T) {
	e := newExchange(t)
	gone := errors.New("gone")
	given := 0
	err := e.clientSession.SealPieces(make([]byte, 1<<10), 0, make([]byte, 1<<16), func([]byte) error {
		given++
		return gone
	})
	if !errors.Is(err, gone) || given != 1 {
		t.Errorf("error %v after %d pieces", err, given)
	}
	if err := e.clientSession.SealPieces(nil, 4, nil, nil); err == nil {
		t.Error("flags that no frame has are sealed")
	}
}
