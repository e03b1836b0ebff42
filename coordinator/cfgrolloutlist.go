package coordinator

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func (s *configRolloutService) ListConfigRollouts(ctx context.Context, req *musterv1.ListConfigRolloutsRequest) (*musterv1.ListConfigRolloutsResponse, error) {
	newest := req.Order != musterv1.Order_ASC
	list := "rollouts newest first " + req.Config
	if !newest {
		list = "rollouts oldest first " + req.Config
	}
	last, err := pageStart(req.PageToken, list)
	if err != nil {
		return nil, err
	}
	from := store.Range{Prefix: []byte(rolloutPrefix), Reverse: newest}
	if last != "" {
		from.After = rolloutKey(last)
	}
	resp := &musterv1.ListConfigRolloutsResponse{}
	size, bytes := pageSize(req.PageSize), 0
	for {
		page, err := s.c.store.Scan(ctx, spaceConfig, from)
		if err != nil {
			return nil, err
		}
		for _, kv := range page.Items {
			row := &musterv1.ConfigRollout{}
			if err := decode(kv.Key, kv.Value, row); err != nil {
				s.c.log.Error("rollout not listed", "err", err)
				continue
			}
			if req.Config != "" && row.Config != req.Config {
				continue
			}
			if len(resp.Rollouts) == size || bytes > maxPageBytes {
				resp.NextPageToken = pageToken(list, resp.Rollouts[len(resp.Rollouts)-1].Id)
				return resp, nil
			}
			if row.EndTime == nil {
				if row, err = s.rollout(ctx, row.Id); err != nil {
					return nil, err
				}
			}
			resp.Rollouts = append(resp.Rollouts, row)
			bytes += proto.Size(row)
		}
		if !page.More {
			return resp, nil
		}
		from.After = page.Items[len(page.Items)-1].Key
	}
}

// ListRolloutTargets leaves out agents that left the bindings.
func (s *configRolloutService) ListRolloutTargets(ctx context.Context, req *musterv1.ListRolloutTargetsRequest) (*musterv1.ListRolloutTargetsResponse, error) {
	if err := checkRolloutID(req.Id); err != nil {
		return nil, err
	}
	after, err := pageStart(req.PageToken, "rollout targets")
	if err != nil {
		return nil, err
	}
	targets, err := s.targets(ctx, req.Id)
	if err != nil {
		return nil, err
	}
	resp := &musterv1.ListRolloutTargetsResponse{}
	size, bytes := pageSize(req.PageSize), 0
	for _, t := range targets {
		if t.AgentId <= after || len(req.States) > 0 && !slices.Contains(req.States, t.State) {
			continue
		}
		if len(resp.Targets) == size || bytes > maxPageBytes {
			resp.NextPageToken = pageToken("rollout targets", resp.Targets[len(resp.Targets)-1].AgentId)
			break
		}
		resp.Targets = append(resp.Targets, t)
		bytes += proto.Size(t)
	}
	return resp, nil
}

// targets returns where all targets of a rollout stand, by agent.
func (s *configRolloutService) targets(ctx context.Context, id string) (all []*musterv1.RolloutTarget, err error) {
	rs := s.c.rollouts
	if r := rs.find(id); r != nil {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		for i, p := range r.at {
			if !p.left {
				all = append(all, r.target(i, false))
			}
		}
		return all, nil
	}
	row, err := s.rollout(ctx, id)
	if err != nil {
		return nil, err
	}
	if all, err = rs.outcomeOf(ctx, id); err != nil {
		return nil, err
	}
	rs.sinceThen(row, all)
	return all, nil
}

// sinceThen says of those that a rollout did not reach what they run now: they
// may have its version by the bindings.
func (rs *configRollouts) sinceThen(row *musterv1.ConfigRollout, targets []*musterv1.RolloutTarget) {
	head := rs.c.configs.catalog.head(row.Config)
	for _, t := range targets {
		switch {
		case t.State != musterv1.RolloutTarget_SKIPPED || head == nil:
		case rs.c.configs.statusOf(t.AgentId, head).GetRunningVersion() == row.Version:
			t.Reason = fmt.Sprintf("it runs version %d by now", row.Version)
		case row.State == musterv1.ConfigRollout_DONE:
			t.Reason = "it was not there; it gets what the bindings say when it comes"
		}
	}
}
