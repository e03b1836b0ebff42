package coordinator

import (
	"context"
	"slices"

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
	ids := s.c.fleet.ids()
	i, found := slices.BinarySearch(ids, after)
	if found {
		i++
	}
	resp := &musterv1.ListAgentsResponse{}
	size := pageSize(req.PageSize)
	for ; i < len(ids) && len(resp.Agents) < size; i++ {
		if a := s.c.fleet.view(ids[i]); a != nil {
			resp.Agents = append(resp.Agents, a)
		}
	}
	if i < len(ids) {
		resp.NextPageToken = pageToken("agents", ids[i-1])
	}
	return resp, nil
}

func (s *agentService) GetAgent(_ context.Context, req *musterv1.GetAgentRequest) (*musterv1.Agent, error) {
	if a := s.c.fleet.view(req.Id); a != nil {
		return a, nil
	}
	return nil, notFound("agent", req.Id)
}
