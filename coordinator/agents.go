package coordinator

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// agentService answers for the resource agents.
type agentService struct {
	musterv1.UnimplementedAgentsServer
	c *Coordinator
}

func (s *agentService) ListAgents(_ context.Context, req *musterv1.ListAgentsRequest) (*musterv1.ListAgentsResponse, error) {
	after, err := pageStart(req.PageToken, "agents")
	if err != nil {
		return nil, err
	}
	ids := behind(s.c.fleet.ids(), after)
	resp := &musterv1.ListAgentsResponse{}
	i, size, bytes := 0, pageSize(req.PageSize), 0
	for ; i < len(ids) && len(resp.Agents) < size && bytes < maxPageBytes; i++ {
		if a := s.c.fleet.view(ids[i]); a != nil {
			a.Groups = s.c.groups.of(a.Id)
			resp.Agents = append(resp.Agents, a)
			bytes += proto.Size(a)
		}
	}
	if i < len(ids) {
		resp.NextPageToken = pageToken("agents", ids[i-1])
	}
	return resp, nil
}

func (s *agentService) GetAgent(_ context.Context, req *musterv1.GetAgentRequest) (*musterv1.Agent, error) {
	a := s.c.fleet.view(req.Id)
	if a == nil {
		return nil, notFound("agent", req.Id)
	}
	a.Groups = s.c.groups.of(req.Id)
	a.Queue = s.c.ledger.queueOf(req.Id)
	s.c.fleet.refusal(req.Id, a.Queue)
	return a, nil
}

// SetMaintenance holds an agent's queue, or frees it.
func (s *agentService) SetMaintenance(ctx context.Context, req *musterv1.SetMaintenanceRequest) (*musterv1.Agent, error) {
	row := s.c.fleet.rowOf(req.Id)
	if row == nil {
		return nil, notFound("agent", req.Id)
	}
	if row.Maintenance != req.Maintenance {
		row.Maintenance = req.Maintenance
		if _, err := s.c.store.Commit(ctx, store.Batch{Ops: []store.Op{putAgent(row)}}); err != nil {
			return nil, err
		}
		s.c.fleet.setMaintenance(req.Id, req.Maintenance)
		s.c.feed.publish(&musterv1.Event{Kind: "agent", Agent: s.c.fleet.view(req.Id)})
		s.c.dispatch.wake(req.Id)
		s.c.configs.look.wake(req.Id)
	}
	return s.GetAgent(ctx, &musterv1.GetAgentRequest{Id: req.Id})
}

// DeleteAgent forgets an agent; see forget. It returns when that is stored and
// every target of the agent is final. After an error of the store the agent is gone
// all the same, and comes back only if this process ends before it is stored.
func (s *agentService) DeleteAgent(ctx context.Context, req *musterv1.DeleteAgentRequest) (*musterv1.DeleteAgentResponse, error) {
	stored, ok := s.c.forget(req.Id, errDeleted, func(*agent) bool { return true })
	if !ok {
		return nil, notFound("agent", req.Id)
	}
	select {
	case err := <-stored:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := s.c.ledger.awaitIdle(ctx, req.Id); err != nil {
		return nil, err
	}
	return &musterv1.DeleteAgentResponse{}, nil
}
