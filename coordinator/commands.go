package coordinator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// commandService answers for the resource commands.
type commandService struct {
	musterv1.UnimplementedCommandsServer
	c    *Coordinator
	quit <-chan struct{} // ends long polls
}

func (s *commandService) CreateCommand(ctx context.Context, req *musterv1.CreateCommandRequest) (*musterv1.Command, error) {
	return s.c.submit(ctx, req.Command, req.IdempotencyKey)
}

func (s *commandService) GetCommand(ctx context.Context, req *musterv1.GetCommandRequest) (*musterv1.Command, error) {
	if _, ended, open := s.c.ledger.command(req.Id); open && req.Wait.AsDuration() > 0 {
		t := time.NewTimer(req.Wait.AsDuration())
		defer t.Stop()
		select {
		case <-ended:
		case <-t.C:
		case <-s.quit:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return s.c.command(ctx, req.Id)
}

func (s *commandService) ListTargets(ctx context.Context, req *musterv1.ListTargetsRequest) (*musterv1.ListTargetsResponse, error) {
	if len(req.States) > 0 {
		return s.listByState(ctx, req)
	}
	last, err := pageStart(req.PageToken, "targets")
	if err != nil {
		return nil, err
	}
	size := pageSize(req.PageSize)
	agents, states, open := s.c.ledger.statesFrom(req.CommandId, last, size+1)
	if !open {
		if _, err := s.c.command(ctx, req.CommandId); err != nil {
			return nil, err
		}
		if agents, err = s.listed(ctx, req.CommandId, last, size+1); err != nil {
			return nil, err
		}
	}
	resp := &musterv1.ListTargetsResponse{}
	more := len(agents) > size
	agents = agents[:min(len(agents), size)]
	resp.Targets, err = s.results(ctx, req.CommandId, agents)
	if err != nil {
		return nil, err
	}
	bytes := 0
	for i, t := range resp.Targets {
		if t.State == 0 && open {
			t.State = states[i]
		}
		if bytes += proto.Size(t); bytes > maxPageBytes && i < len(agents)-1 {
			more = true
			resp.Targets = resp.Targets[:i+1]
			break
		}
	}
	if more {
		resp.NextPageToken = pageToken("targets", resp.Targets[len(resp.Targets)-1].AgentId)
	}
	return resp, nil
}

// listByState is ListTargets for some states only: it walks the pages of the
// whole list and keeps what fits, for filterTime.
func (s *commandService) listByState(ctx context.Context, req *musterv1.ListTargetsRequest) (*musterv1.ListTargetsResponse, error) {
	all := &musterv1.ListTargetsRequest{CommandId: req.CommandId, PageSize: maxPage, PageToken: req.PageToken}
	resp := &musterv1.ListTargetsResponse{}
	size, until := pageSize(req.PageSize), time.Now().Add(filterTime)
	for {
		page, err := s.ListTargets(ctx, all)
		if err != nil {
			return nil, err
		}
		for i, t := range page.Targets {
			if slices.Contains(req.States, t.State) {
				resp.Targets = append(resp.Targets, t)
			}
			if len(resp.Targets) == size && (i < len(page.Targets)-1 || page.NextPageToken != "") {
				resp.NextPageToken = pageToken("targets", t.AgentId)
				return resp, nil
			}
		}
		if page.NextPageToken == "" || time.Now().After(until) {
			resp.NextPageToken = page.NextPageToken
			return resp, nil
		}
		all.PageToken = page.NextPageToken
	}
}

// listed returns up to n targets of an ended command after the given agent.
func (s *commandService) listed(ctx context.Context, id, after string, n int) ([]string, error) {
	e, err := s.c.ended.get(ctx, s.c.store, id)
	if err != nil {
		return nil, err
	}
	rest := behind(e.targets, after)
	return rest[:min(len(rest), n)], nil
}

// results reads the final Targets of these agents, and what came late. One that is
// not final has state 0.
func (s *commandService) results(ctx context.Context, id string, agents []string) ([]*musterv1.Target, error) {
	ts, err := s.c.finals(ctx, id, agents...)
	if err != nil {
		return nil, err
	}
	for i, agent := range agents {
		if ts[i] == nil {
			ts[i] = &musterv1.Target{CommandId: id, AgentId: agent}
		}
	}
	return ts, addLate(ctx, s.c.store, id, ts, func(err error) error { return err })
}

// addLate adds to the final ones of a command's Targets what came after them. Of a
// row that cannot be read bad says whether that ends it.
func addLate(ctx context.Context, s store.Store, id string, ts []*musterv1.Target, bad func(error) error) error {
	if len(ts) == 0 {
		return nil
	}
	keys := make([][]byte, len(ts))
	for i, t := range ts {
		keys[i] = lateKey(id, t.AgentId)
	}
	kvs, err := s.Get(ctx, spaceHistory, keys...)
	if err != nil {
		return err
	}
	for i, kv := range kvs {
		if kv.Rev == 0 || !isFinal(ts[i].State) {
			continue
		}
		late := &musterv1.Target{}
		if err := decode(kv.Key, kv.Value, late); err == nil {
			ts[i].Late = late
		} else if err := bad(err); err != nil {
			return err
		}
	}
	return nil
}

func (s *commandService) GetTarget(ctx context.Context, req *musterv1.GetTargetRequest) (*musterv1.Target, error) {
	if err := s.isTarget(ctx, req.CommandId, req.AgentId); err != nil {
		return nil, err
	}
	r, open := s.c.ledger.find(req.CommandId, req.AgentId)
	ts, err := s.results(ctx, req.CommandId, []string{req.AgentId})
	if err != nil {
		return nil, err
	}
	if ts[0].State == 0 && open {
		ts[0].State = s.c.ledger.state(r)
	}
	return ts[0], nil
}

// isTarget returns NOT_FOUND unless the command was given to the agent.
func (s *commandService) isTarget(ctx context.Context, id, agent string) error {
	if _, ok := s.c.ledger.find(id, agent); ok {
		return nil
	}
	if _, err := s.c.command(ctx, id); err != nil {
		return err
	}
	e, err := s.c.ended.get(ctx, s.c.store, id)
	if err != nil {
		return err
	}
	if _, ok := slices.BinarySearch(e.targets, agent); !ok {
		return fail(codes.NotFound, "NOT_FOUND", fmt.Sprintf("command %s was not given to agent %.150q", id, agent))
	}
	return nil
}
