package agentd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// fetch is content that is asked for, piece by piece.
type fetch struct {
	version int32
	pieces  chan *musterv1.ConfigContent // 1: one is asked for at a time
}

const (
	maxPiece  = 256 << 10
	pieceTime = 30 * time.Second
	fetchTime = 10 * time.Minute
)

// errDropped says that an offer came to nothing: the config is as it was before,
// and the next offer brings it again.
var errDropped = errors.New("the offer is over")

// contentOf gets the bytes of an offer from where they are.
func (a *applier) contentOf(ctx context.Context, h *heldConfig, o *offer) ([]byte, error) {
	switch {
	case o.here:
		return o.bytes, nil
	case o.link == nil:
		b, err := a.store.kept(h.record.key())
		if err != nil {
			return nil, lasting{fmt.Errorf("content that was to be tried again is lost: %w", err)}
		}
		return b, nil
	}
	return a.fetch(ctx, h, o)
}

// fetch asks for the content on the link that the offer came on. With the link
// the offer ends too.
func (a *applier) fetch(ctx context.Context, h *heldConfig, o *offer) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	f := &fetch{version: o.Version, pieces: make(chan *musterv1.ConfigContent, 1)}
	a.expect(h, f)
	defer a.expect(h, nil)
	var got []byte
	for len(got) < o.Size {
		if err := a.ask(ctx, h.record.key(), o, len(got)); err != nil {
			return nil, err
		}
		m, err := f.next(ctx, o, len(got))
		if err != nil {
			return nil, err
		}
		switch {
		case m.Gone:
			return nil, errDropped
		case int(m.Size) != o.Size, len(m.Data) == 0, len(m.Data) > maxPiece, len(got)+len(m.Data) > o.Size:
			return nil, lasting{fmt.Errorf("content came as %d bytes at %d of %d, want up to %d of %d", len(m.Data), m.Offset, m.Size, maxPiece, o.Size)}
		}
		got = append(got, m.Data...)
	}
	return got, nil
}

// expect says which pieces are taken of a config; nil: none.
func (a *applier) expect(h *heldConfig, f *fetch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h.fetch = f
}

// ask sends one question, as soon as the link takes it.
func (a *applier) ask(ctx context.Context, key configKey, o *offer, offset int) error {
	m := &musterv1.FetchConfig{Kind: key.kind, Name: key.name, Version: o.Version, Offset: uint32(offset)}
	for {
		err := o.link.Send(m)
		if err == nil {
			return nil
		}
		if !errors.Is(err, bus.ErrQueueFull) {
			return errDropped
		}
		select {
		case <-time.After(100 * time.Millisecond): // Drained may wake only one, and others wait for it
		case <-o.link.Done():
			return errDropped
		case <-ctx.Done():
			return errDropped
		}
	}
}

// next waits for the piece at an offset.
func (f *fetch) next(ctx context.Context, o *offer, offset int) (*musterv1.ConfigContent, error) {
	late := time.NewTimer(pieceTime)
	defer late.Stop()
	for {
		select {
		case m := <-f.pieces:
			if m.Gone || int(m.Offset) == offset {
				return m, nil
			}
		case <-late.C:
			return nil, errDropped
		case <-o.newer:
			return nil, errDropped
		case <-o.link.Done():
			return nil, errDropped
		case <-ctx.Done():
			return nil, errDropped
		}
	}
}

// onContent hands a piece to who asked for it. One that nobody waits for is
// dropped.
func (a *applier) onContent(m *musterv1.ConfigContent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.held[configKey{m.Kind, m.Name}]
	if h == nil || h.fetch == nil || h.fetch.version != m.Version {
		return
	}
	select {
	case h.fetch.pieces <- m:
	default:
	}
}
