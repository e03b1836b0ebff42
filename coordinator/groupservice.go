package coordinator

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// groupService answers for the resource groups.
type groupService struct {
	musterv1.UnimplementedGroupsServer
	c *Coordinator
}

// PutGroup makes or replaces a group. Nothing is written when it is there as it
// is wanted. When it returns, its members are worked out.
func (s *groupService) PutGroup(ctx context.Context, req *musterv1.PutGroupRequest) (*musterv1.Group, error) {
	row, err := groupRow(req.Group)
	if err != nil {
		return nil, err
	}
	gr, err := newGroup(row)
	if err != nil {
		return nil, err
	}
	in, err := s.c.groups.tryOut(ctx, gr)
	if err != nil {
		return nil, err
	}
	s.c.groups.changing.Lock()
	defer s.c.groups.changing.Unlock()
	old, rev, err := s.stored(ctx, row.Name)
	if err != nil {
		return nil, err
	}
	if err := checkEtag("group", row.Name, old.GetEtag(), req.IfMatch, req.IfNoneMatch); err != nil {
		return nil, err
	}
	if old != nil && old.Description == row.Description && old.Where == row.Where && slices.Equal(old.Agents, row.Agents) {
		old.Size = uint32(len(in))
		return old, nil
	}
	if n := len(s.c.groups.names()); old == nil && n >= maxGroups {
		return nil, fail(codes.ResourceExhausted, "TOO_MANY_GROUPS", fmt.Sprintf("there are %d groups, which is the limit", n))
	}
	row.UpdateTime = s.c.nowStamp()
	row.CreateTime = row.UpdateTime
	if old != nil {
		row.CreateTime = old.CreateTime
	}
	op := store.Op{Space: spaceConfig, Key: groupKey(row.Name), Value: encode(row), If: atRev(rev)}
	row.Etag, row.Size = etagOf(op.Value), uint32(len(in))
	if req.DryRun {
		return row, nil
	}
	return row, s.c.commitWanted(ctx, op)
}

// groupRow checks what an operator says of a group, and makes its row.
func groupRow(m *musterv1.Group) (*musterv1.Group, error) {
	var f faults
	if !agentIDForm.MatchString(m.GetName()) {
		f.add("name", "%.150q is not a name of a group: 1 to 128 letters, digits, '.', '_', '-', the first a letter or digit", m.GetName())
	}
	row := f.members(m)
	return row, f.err()
}

// members checks who shall be in a group, and makes the row of it.
func (f *faults) members(m *musterv1.Group) *musterv1.Group {
	if len(m.GetDescription()) > maxDescription {
		f.add("description", "%d bytes, at most %d", len(m.Description), maxDescription)
	}
	if len(m.GetAgents()) > maxGroupAgents {
		f.add("agents", "%d agents, at most %d; select them by an expression", len(m.Agents), maxGroupAgents)
	}
	f.agentIDs("agents", m.GetAgents())
	agents := slices.Clone(m.GetAgents())
	slices.Sort(agents)
	row := &musterv1.Group{Name: m.GetName(), Description: m.GetDescription(), Where: m.GetWhere(), Agents: slices.Compact(agents)}
	if n := proto.Size(row); n > maxGroupRow {
		f.add("agents", "the group has %d bytes, at most %d; select them by an expression", n, maxGroupRow)
	}
	return row
}

// stored returns a group as it is stored, with the revision of its row, or nil.
func (s *groupService) stored(ctx context.Context, name string) (*musterv1.Group, store.Rev, error) {
	kvs, err := s.c.store.Get(ctx, spaceConfig, groupKey(name))
	if err != nil || kvs[0].Rev == 0 {
		return nil, 0, err
	}
	row := &musterv1.Group{}
	if err := decode(kvs[0].Key, kvs[0].Value, row); err != nil {
		return nil, 0, err
	}
	row.Etag = etagOf(kvs[0].Value)
	return row, kvs[0].Rev, nil
}

func (s *groupService) GetGroup(_ context.Context, req *musterv1.GetGroupRequest) (*musterv1.Group, error) {
	s.c.groups.lookAll()
	v := s.c.groups.view(req.Name)
	if v == nil {
		return nil, notFound("group", req.Name)
	}
	return v, nil
}

// DeleteGroup removes a group that no config is bound to.
func (s *groupService) DeleteGroup(ctx context.Context, req *musterv1.DeleteGroupRequest) (*musterv1.DeleteGroupResponse, error) {
	s.c.groups.changing.Lock()
	defer s.c.groups.changing.Unlock()
	old, rev, err := s.stored(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	if old == nil && req.IfMatch == "" {
		return nil, notFound("group", req.Name)
	}
	if err := checkEtag("group", req.Name, old.GetEtag(), req.IfMatch, false); err != nil {
		return nil, err
	}
	if err := s.unbound(ctx, req.Name); err != nil {
		return nil, err
	}
	op := store.Op{Kind: store.Delete, Space: spaceConfig, Key: groupKey(req.Name), If: atRev(rev)}
	return &musterv1.DeleteGroupResponse{}, s.c.commitWanted(ctx, op)
}

// unbound returns GROUP_IN_USE when configs are bound to a group.
func (s *groupService) unbound(ctx context.Context, name string) error {
	var users []string
	err := s.c.each(ctx, spaceConfig, cfgPrefix, func(kv store.KV) error {
		head := &musterv1.Config{}
		if err := decode(kv.Key, kv.Value, head); err != nil {
			return err
		}
		if slices.ContainsFunc(head.Bindings, func(b *musterv1.Binding) bool { return b.Group == name }) {
			users = append(users, head.Name)
		}
		return nil
	})
	if err != nil || len(users) == 0 {
		return err
	}
	return fail(codes.FailedPrecondition, "GROUP_IN_USE", fmt.Sprintf("group %q: bound to it is config %q, %d in all; take the bindings away first", name, users[0], len(users)))
}

func (s *groupService) ListGroups(_ context.Context, req *musterv1.ListGroupsRequest) (*musterv1.ListGroupsResponse, error) {
	names, more, err := pageOf(s.c.groups.names(), req.PageToken, "groups", pageSize(req.PageSize))
	if err != nil {
		return nil, err
	}
	s.c.groups.lookAll()
	resp := &musterv1.ListGroupsResponse{}
	size := 0
	for i, name := range names {
		g := s.c.groups.view(name)
		if g == nil {
			continue // gone meanwhile
		}
		resp.Groups = append(resp.Groups, g)
		if size += proto.Size(g); size > maxPageBytes && i < len(names)-1 {
			more = pageToken("groups", name)
			break
		}
	}
	resp.NextPageToken = more
	return resp, nil
}

func (s *groupService) ListGroupAgents(_ context.Context, req *musterv1.ListGroupAgentsRequest) (*musterv1.ListGroupAgentsResponse, error) {
	agents, ok := s.c.groups.members(req.Name)
	if !ok {
		return nil, notFound("group", req.Name)
	}
	ids, more, err := pageOf(agents, req.PageToken, "group agents", pageSize(req.PageSize))
	return &musterv1.ListGroupAgentsResponse{AgentIds: ids, NextPageToken: more}, err
}

// maxNamed bounds the leavers and the configs that a preview names.
const maxNamed = 100

// PreviewGroup says who would be in a group, how that differs from the stored
// one of that name, if there is one, and which configs go with it.
func (s *groupService) PreviewGroup(ctx context.Context, req *musterv1.PreviewGroupRequest) (*musterv1.PreviewGroupResponse, error) {
	var f faults
	row := f.members(req.Group)
	if err := f.err(); err != nil {
		return nil, err
	}
	gr, err := newGroup(row)
	if err != nil {
		return nil, err
	}
	in, err := s.c.groups.tryOut(ctx, gr)
	if err != nil {
		return nil, err
	}
	now, _ := s.c.groups.members(row.Name)
	resp := &musterv1.PreviewGroupResponse{Total: uint32(len(in)), Fleet: uint32(s.c.fleet.size())}
	for _, id := range now {
		if _, stays := slices.BinarySearch(in, id); stays {
			continue
		}
		if resp.Leaving++; len(resp.LeavingIds) < maxNamed {
			resp.LeavingIds = append(resp.LeavingIds, id)
		}
	}
	resp.Configs = s.c.configs.catalog.boundTo(row.Name)
	resp.AgentIds, resp.NextPageToken, err = pageOf(in, req.PageToken, "group preview", pageSize(req.PageSize))
	if err != nil {
		return nil, err
	}
	for _, id := range resp.AgentIds {
		if _, was := slices.BinarySearch(now, id); !was {
			resp.Joining = append(resp.Joining, id)
		}
	}
	return resp, nil
}
