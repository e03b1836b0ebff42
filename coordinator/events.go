package coordinator

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// eventService answers for the resource events.
type eventService struct {
	musterv1.UnimplementedEventsServer
	c    *Coordinator
	quit <-chan struct{} // ends the streams
}

var eventKinds = []string{"agent", "command", "target", "group", "config", "config_status", "rollout", "resync"}

func (s *eventService) WatchEvents(req *musterv1.WatchEventsRequest, out musterv1.Events_WatchEventsServer) error {
	for _, k := range req.Kinds {
		if !slices.Contains(eventKinds, k) {
			return invalid("kinds", "%.40q is not a kind of event; there are %v", k, eventKinds)
		}
	}
	ctx, cancel := context.WithCancel(out.Context())
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-s.quit:
		case <-ctx.Done():
		}
	}()
	defer s.c.feed.attend()()
	next, whole := s.c.feed.from(req.After)
	if err := out.SendHeader(nil); err != nil { // so that the caller knows that it listens
		return err
	}
	if !whole {
		if err := out.Send(s.c.feed.resync()); err != nil {
			return err
		}
	}
	for {
		es, after, err := s.c.feed.read(ctx, next)
		if err != nil {
			return fail(codes.Unavailable, "ENDED", "the stream of events ends")
		}
		next = after
		for _, e := range es {
			if len(req.Kinds) > 0 && e.Kind != "resync" && !slices.Contains(req.Kinds, e.Kind) {
				continue
			}
			if err := out.Send(e); err != nil {
				return err
			}
		}
	}
}
