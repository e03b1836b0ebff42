package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const (
	maxFetches = 64 // of one link that wait; an agent asks for one piece after the other
	maxPieces  = 64 // kept encoded, at most 256 KiB each

	maxFetchEnvelope = 64 << 10 // bytes of id and opaque, which wait with the request
)

// onFetchConfig queues the request for a piece of what is offered to the agent.
// Anything else is answered as gone.
func (c *Coordinator) onFetchConfig(p *bus.Peer, env *musterv1.Envelope, m *musterv1.FetchConfig) error {
	s, a, err := c.from(p)
	if err != nil {
		return err
	}
	want := c.configs.offeredTo(a.id, s)
	if m.Version == 0 || want.version(m.Kind, m.Name) != m.Version {
		gone := &musterv1.ConfigContent{Kind: m.Kind, Name: cutText(m.Name, maxName), Version: m.Version, Offset: m.Offset, Gone: true}
		return quiet(p.Reply(env, gone))
	}
	if n := len(env.GetId()) + len(env.GetOpaque()); n > maxFetchEnvelope {
		return &bus.NackError{Reason: musterv1.Nack_INVALID, Detail: fmt.Sprintf("an envelope of %d bytes, at most %d", n, maxFetchEnvelope)}
	}
	r := fetch{key: offerKey{m.Kind, m.Name, m.Version}, offset: m.Offset, want: want, agent: a.id}
	if env.GetId() != "" || len(env.GetOpaque()) > 0 {
		r.env = &musterv1.Envelope{InReplyTo: env.Id, Opaque: env.Opaque}
	}
	if !c.configs.fetches.add(s, r) {
		c.metrics.dropped("fetch_config")
		return &bus.NackError{Reason: musterv1.Nack_RETRY, Detail: fmt.Sprintf("%d requests are waiting already", maxFetches)}
	}
	return nil
}

// offeredTo returns what an agent may fetch on a session.
func (k *configs) offeredTo(agent string, s *session) *wantSet {
	k.mu.Lock()
	defer k.mu.Unlock()
	if o := k.holdings[agent]; o != nil && o.session == s {
		return o.want
	}
	return emptyWant
}

// fetches answers requests for content, away from the readers of the links: it
// reads the store. Links take turns.
type fetches struct {
	k     *configs
	woken chan struct{} // cap 1

	mu      sync.Mutex
	waiting map[*session][]fetch
	turn    []*session

	pieces map[pieceKey]bus.Frames // of run alone
	order  []pieceKey
}

type fetch struct {
	key    offerKey
	offset uint32
	want   *wantSet
	agent  string
	env    *musterv1.Envelope // of the answer; nil: it needs none
}

// content is the answer, without what was asked for.
func (r fetch) content() *musterv1.ConfigContent {
	return &musterv1.ConfigContent{Kind: r.key.kind, Name: r.key.name, Version: r.key.version, Offset: r.offset}
}

// pieceKey names a piece that starts at a multiple of maxPiece.
type pieceKey struct {
	offerKey
	offset uint32
}

func newFetches(k *configs) *fetches {
	return &fetches{k: k, woken: make(chan struct{}, 1), waiting: map[*session][]fetch{}, pieces: map[pieceKey]bus.Frames{}}
}

// add queues a request; false: the link has too many.
func (f *fetches) add(s *session, r fetch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.waiting[s]
	if len(list) >= maxFetches {
		return false
	}
	if len(list) == 0 {
		f.turn = append(f.turn, s)
	}
	f.waiting[s] = append(list, r)
	f.ring()
	return true
}

func (f *fetches) ring() {
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

// next takes the oldest request of the link whose turn it is.
func (f *fetches) next() (s *session, r fetch, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.turn) == 0 {
		return nil, fetch{}, false
	}
	s = f.turn[0]
	f.turn = f.turn[1:]
	list := f.waiting[s]
	if r = list[0]; len(list) > 1 {
		f.waiting[s] = list[1:]
		f.turn = append(f.turn, s)
	} else {
		delete(f.waiting, s)
	}
	return s, r, true
}

func (f *fetches) run(ctx context.Context) error {
	for {
		select {
		case <-f.woken:
		case <-ctx.Done():
			return nil
		}
		for ctx.Err() == nil {
			s, r, ok := f.next()
			if !ok {
				break
			}
			f.answer(ctx, s, r)
		}
	}
}

// answer sends a piece. One that does not fit waits until the queue has drained.
func (f *fetches) answer(ctx context.Context, s *session, r fetch) {
	frames, err := f.piece(ctx, r)
	if err != nil {
		f.k.c.warn("content of a config not sent; it is offered again", "agent", r.agent, "config", r.key.name, "version", r.key.version, "err", err)
		m := r.content()
		m.Gone = true
		if frames, err = bus.Seal(r.env, m); err != nil {
			return
		}
	}
	switch err := s.peer.SendFrames(frames); {
	case errors.Is(err, bus.ErrQueueFull):
		f.hold(s, r)
	case err != nil:
		f.drop(s) // the link is gone
	}
}

// hold puts a request back, and lets its link wait until its queue has drained.
func (f *fetches) hold(s *session, r fetch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting[s] = append([]fetch{r}, f.waiting[s]...)
	f.turn = slices.DeleteFunc(f.turn, func(t *session) bool { return t == s })
	s.whenDrained("content", func() { f.resume(s) })
}

func (f *fetches) resume(s *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiting[s]) > 0 && !slices.Contains(f.turn, s) {
		f.turn = append(f.turn, s)
		f.ring()
	}
}

func (f *fetches) drop(s *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiting, s)
	f.turn = slices.DeleteFunc(f.turn, func(t *session) bool { return t == s })
}

// piece returns an answer as it is sent: for whole pieces encoded once for all
// who need no envelope.
func (f *fetches) piece(ctx context.Context, r fetch) (bus.Frames, error) {
	key := pieceKey{r.key, r.offset}
	if frames, ok := f.pieces[key]; ok && r.env == nil {
		return frames, nil
	}
	data, size, err := f.k.contentAt(ctx, r)
	if err != nil {
		return bus.Frames{}, err
	}
	m := r.content()
	m.Data, m.Size = data, size
	frames, err := bus.Seal(r.env, m)
	if err != nil || r.env != nil || r.offset%maxPiece != 0 {
		return frames, err
	}
	f.pieces[key] = frames
	if f.order = append(f.order, key); len(f.order) > maxPieces {
		delete(f.pieces, f.order[0])
		f.order = f.order[1:]
	}
	return frames, nil
}

// contentAt reads what is offered from an offset to the end of that piece.
func (k *configs) contentAt(ctx context.Context, r fetch) (data []byte, size uint32, err error) {
	x, err := k.offers.get(ctx, r.key, r.want)
	if err != nil {
		return nil, 0, err
	}
	if r.offset > x.size || r.offset == x.size && x.size > 0 {
		return nil, 0, fmt.Errorf("offset %d of %d bytes was asked for", r.offset, x.size)
	}
	if x.size == 0 {
		return nil, 0, nil
	}
	i := int(r.offset) / maxPiece
	if r.key.kind == musterv1.Config_INSTANCE {
		doc := x.content
		if doc == nil { // it was sent inline
			d, err := k.merged(ctx, r.want.sourceRefs())
			if err != nil {
				return nil, 0, err
			}
			doc = d.content
		}
		return doc[r.offset:min(len(doc), (i+1)*maxPiece)], x.size, nil
	}
	part, err := k.piece(ctx, configRef{r.key.name, r.key.version}, x.size, i)
	if err != nil {
		return nil, 0, err
	}
	return part[int(r.offset)%maxPiece:], x.size, nil
}
