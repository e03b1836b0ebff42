package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Config describes a fleet.
type Config struct {
	Addr     netip.AddrPort
	Peers    int
	Security Security
	Message  Message // what the peers say, and want to hear

	Timing        bool // note how long each round trip takes; for a window of 1
	ReceiveBuffer int  // of each socket in bytes (the system's default)
}

const (
	loops       = 2  // one for each core that the benchmark is made for
	handshaking = 64 // connections that shake hands at a time
	spare       = 64 // files that the process needs besides
)

// Fleet is connected peers. Its methods are called one at a time.
type Fleet struct {
	loops []*loop
	peers int
}

// Connect connects all peers.
func Connect(ctx context.Context, cfg Config) (_ *Fleet, err error) {
	if err := allowFiles(cfg.Peers + spare); err != nil {
		return nil, err
	}
	f := &Fleet{}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	for range min(loops, cfg.Peers) {
		l, err := newLoop(cfg.Message)
		if err != nil {
			return nil, err
		}
		l.timing = cfg.Timing
		f.loops = append(f.loops, l)
	}
	peers := make([]*peer, cfg.Peers)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(handshaking)
	for i := range peers {
		g.Go(func() (err error) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if peers[i], err = connect(cfg, i); err != nil {
				return fmt.Errorf("peer %d: %w", i, err)
			}
			return nil
		})
	}
	err = g.Wait()
	for _, p := range peers {
		if p != nil {
			err = errors.Join(err, f.add(p))
		}
	}
	return f, err
}

// add gives p to one of the loops, in turn.
func (f *Fleet) add(p *peer) error {
	f.peers++
	return f.loops[f.peers%len(f.loops)].add(p)
}

// connect connects the i-th peer.
func connect(cfg Config, i int) (*peer, error) {
	from := netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + i/1000%250)})
	s, err := dial(from, cfg.Addr, cfg.ReceiveBuffer)
	if err != nil {
		return nil, err
	}
	session, err := cfg.Security.ShakeHands(s, fmt.Sprintf("peer-%d", i))
	if err != nil {
		s.close()
		return nil, err
	}
	return &peer{socket: s, listener: listener{want: cfg.Message, session: session}}, nil
}

// allowFiles checks that n files can be open; Go's runtime has raised the limit
// as far as it may.
func allowFiles(n int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if limit.Cur < uint64(n) {
		return fmt.Errorf("%d open files are needed, the limit is %d", n, limit.Cur)
	}
	return nil
}

// Run keeps window messages of each peer under way until ctx ends. What was
// not answered then stays under way.
func (f *Fleet) Run(ctx context.Context, window int) error {
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	var g errgroup.Group
	for _, l := range f.loops {
		g.Go(func() error { return l.run(window, &stop) })
	}
	return g.Wait()
}

// Answers is the number of answers that came up to now. It may be called while
// Run runs.
func (f *Fleet) Answers() (n int64) {
	for _, l := range f.loops {
		n += l.answers.Load()
	}
	return n
}

// Say sends another message from every peer. Nothing is read before the next Run.
func (f *Fleet) Say(m Message) error {
	for _, l := range f.loops {
		for _, p := range l.peers {
			b := m.Append(nil)
			if s := p.listener.session; s != nil {
				var err error
				if b, err = m.seal(nil, s); err != nil {
					return err
				}
			}
			if _, err := p.socket.Write(b); err != nil {
				return fmt.Errorf("say: %w", err)
			}
		}
	}
	return nil
}

// Quantile is the time within which that part of the round trips noted since the last
// Forget came back; 0 if there were none.
func (f *Fleet) Quantile(q float64) time.Duration {
	var times []time.Duration
	for _, l := range f.loops {
		times = append(times, l.times...)
	}
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[int(q*float64(len(times)-1))]
}

// Forget drops the times noted.
func (f *Fleet) Forget() {
	for _, l := range f.loops {
		l.times = l.times[:0]
	}
}

// Close cuts all connections.
func (f *Fleet) Close() {
	for _, l := range f.loops {
		l.close()
	}
}
