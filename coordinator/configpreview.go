package coordinator

import (
	"context"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// PreviewConfig says who would get, change or lose a config by other bindings.
// The versions need not be there yet. Other bindings than those of now are
// refused while a rollout is in progress, as they are by PutConfig.
func (s *configService) PreviewConfig(_ context.Context, req *musterv1.PreviewConfigRequest) (*musterv1.PreviewConfigResponse, error) {
	var f faults
	f.configName("name", req.Config.GetName())
	f.bindings(req.Config.GetBindings())
	if err := f.err(); err != nil {
		return nil, err
	}
	f = s.unknownGroups(req.Config.Bindings)
	if err := f.err(); err != nil {
		return nil, err
	}
	after, err := pageStart(req.PageToken, "config preview")
	if err != nil {
		return nil, err
	}
	resp := &musterv1.PreviewConfigResponse{}
	name, size := req.Config.Name, pageSize(req.PageSize)
	ids := s.c.fleet.ids()
	head := s.c.configs.catalog.head(name)
	if err := bindingsHeld(head, sortedBindings(req.Config.Bindings)); err != nil {
		return nil, err
	}
	for _, id := range ids {
		groups := s.c.groups.of(id)
		from := s.c.configs.rollouts.version(id, name, bindingOf(head.GetBindings(), id, groups).GetVersion())
		to := s.c.configs.rollouts.version(id, name, bindingOf(req.Config.Bindings, id, groups).GetVersion())
		if to != 0 {
			resp.Total++
		}
		if from == to {
			continue
		}
		resp.Changed++
		switch {
		case id <= after:
		case len(resp.Changes) < size:
			resp.Changes = append(resp.Changes, &musterv1.ConfigChange{AgentId: id, FromVersion: from, ToVersion: to})
		default:
			resp.NextPageToken = pageToken("config preview", resp.Changes[size-1].AgentId)
		}
	}
	resp.Fleet = uint32(len(ids))
	return resp, nil
}
