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

// configService answers for the resource configs.
type configService struct {
	musterv1.UnimplementedConfigsServer
	c *Coordinator
}

// PutConfig makes a config, or replaces its description and bindings. Nothing is
// written when it is there as it is wanted. When it returns, agents that come
// get what it says. During a rollout the bindings stay as they are.
func (s *configService) PutConfig(ctx context.Context, req *musterv1.PutConfigRequest) (*musterv1.Config, error) {
	if err := checkConfig(req); err != nil {
		return nil, err
	}
	c, name := s.c, req.Config.Name
	c.configs.changing.Lock()
	defer c.configs.changing.Unlock()
	c.groups.changing.Lock() // a group that is bound to must not go meanwhile
	defer c.groups.changing.Unlock()
	old, rev, err := c.configs.stored(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := checkEtag("config", name, old.GetEtag(), req.IfMatch, req.IfNoneMatch); err != nil {
		return nil, err
	}
	row, err := s.headRow(req, old)
	if err != nil {
		return nil, err
	}
	if old != nil && old.Description == row.Description && sameBindings(old.Bindings, row.Bindings) {
		return old, nil
	}
	if err := bindingsHeld(old, row.Bindings); err != nil {
		return nil, err
	}
	op := putHead(row, rev)
	if req.DryRun {
		return row, nil
	}
	return row, c.commitWanted(ctx, op)
}

// checkConfig returns what is wrong with a request by itself.
func checkConfig(req *musterv1.PutConfigRequest) error {
	var f faults
	m := req.Config
	if m == nil {
		return invalid("config", "a config is needed")
	}
	f.configName("name", m.Name)
	if m.Kind < 0 || m.Kind > musterv1.Config_INSTANCE {
		f.add("kind", "PIPELINE or INSTANCE is needed")
	}
	if len(m.Description) > maxDescription {
		f.add("description", "%d bytes, at most %d", len(m.Description), maxDescription)
	}
	if !req.KeepBindings {
		f.bindings(m.Bindings)
	}
	return f.err()
}

// headRow makes the row of a config that is put; old is nil for a new one.
func (s *configService) headRow(req *musterv1.PutConfigRequest, old *musterv1.Config) (*musterv1.Config, error) {
	m := req.Config
	row := &musterv1.Config{Name: m.Name, Kind: m.Kind}
	if old != nil {
		row = proto.CloneOf(old)
		if m.Kind != 0 && m.Kind != old.Kind {
			return nil, wrongKind(old)
		}
	} else if m.Kind == 0 {
		return nil, invalid("kind", "PIPELINE or INSTANCE is needed")
	} else if n := s.c.configs.catalog.size(); n >= maxConfigs {
		return nil, fail(codes.ResourceExhausted, "TOO_MANY_CONFIGS", fmt.Sprintf("there are %d configs, which is the limit", n))
	}
	row.Description = m.Description
	if !req.KeepBindings {
		row.Bindings = sortedBindings(m.Bindings)
		if err := s.bindable(m); err != nil {
			return nil, err
		}
	}
	row.UpdateTime = s.c.nowStamp()
	if old == nil {
		row.CreateTime = row.UpdateTime
	}
	return row, nil
}

func wrongKind(m *musterv1.Config) error {
	return invalid("kind", "config %q is %s, and stays so; delete it first", m.Name, m.Kind)
}

// bindable returns which of a config's bindings name a group or a version that
// is not there.
func (s *configService) bindable(m *musterv1.Config) error {
	f := s.unknownGroups(m.Bindings)
	for i, b := range m.Bindings {
		if !s.c.configs.catalog.has(m.Name, b.Version) {
			f.add(fmt.Sprintf("bindings[%d].version", i), "config %q has no version %d", m.Name, b.Version)
		}
	}
	return f.err()
}

func (s *configService) unknownGroups(list []*musterv1.Binding) (f faults) {
	for i, b := range list {
		if b.Group != "" && !s.c.groups.has(b.Group) {
			f.add(fmt.Sprintf("bindings[%d].group", i), "group %.150q is not known", b.Group)
		}
	}
	return f
}

// sortedBindings puts the widest scope first, then goes by name.
func sortedBindings(list []*musterv1.Binding) []*musterv1.Binding {
	out := make([]*musterv1.Binding, len(list))
	for i, b := range list {
		out[i] = proto.CloneOf(b)
	}
	slices.SortFunc(out, compareBindings)
	return out
}

// bindingsHeld refuses other bindings for a config whose rollout is in progress:
// its end would undo them without a word.
func bindingsHeld(old *musterv1.Config, list []*musterv1.Binding) error {
	if old.GetRolloutId() == "" || sameBindings(old.Bindings, list) {
		return nil
	}
	return rolloutInProgress(old)
}

func rolloutInProgress(cfg *musterv1.Config) error {
	return fail(codes.FailedPrecondition, "ROLLOUT_IN_PROGRESS", fmt.Sprintf("config %q: rollout %s is in progress; abort it first, or wait until it has ended", cfg.Name, cfg.RolloutId))
}

func sameBindings(a, b []*musterv1.Binding) bool {
	return slices.EqualFunc(a, b, func(x, y *musterv1.Binding) bool { return proto.Equal(x, y) })
}

// GetConfig also counts where its agents stand.
func (s *configService) GetConfig(_ context.Context, req *musterv1.GetConfigRequest) (*musterv1.Config, error) {
	head := s.c.configs.catalog.head(req.Name)
	if head == nil {
		return nil, notFound("config", req.Name)
	}
	cfg := proto.CloneOf(head)
	s.c.configs.count(cfg)
	return cfg, nil
}

func (s *configService) ListConfigs(_ context.Context, req *musterv1.ListConfigsRequest) (*musterv1.ListConfigsResponse, error) {
	names, more, err := pageOf(s.c.configs.catalog.names(), req.PageToken, "configs", pageSize(req.PageSize))
	if err != nil {
		return nil, err
	}
	resp := &musterv1.ListConfigsResponse{}
	size := 0
	for i, name := range names {
		head := s.c.configs.catalog.head(name)
		if head == nil {
			continue // gone meanwhile
		}
		resp.Configs = append(resp.Configs, proto.CloneOf(head))
		if size += proto.Size(head); size > maxPageBytes && i < len(names)-1 {
			more = pageToken("configs", name)
			break
		}
	}
	resp.NextPageToken = more
	s.c.configs.count(resp.Configs...)
	return resp, nil
}

// DeleteConfig takes a config away from all agents, also from those that come
// back later: its name and its last version stay known. The same name may be
// used again; its versions are numbered on.
func (s *configService) DeleteConfig(ctx context.Context, req *musterv1.DeleteConfigRequest) (*musterv1.DeleteConfigResponse, error) {
	c := s.c
	c.configs.changing.Lock()
	defer c.configs.changing.Unlock()
	old, rev, err := c.configs.stored(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	if old == nil && req.IfMatch == "" {
		return nil, notFound("config", req.Name)
	}
	if err := checkEtag("config", req.Name, old.GetEtag(), req.IfMatch, false); err != nil {
		return nil, err
	}
	if old.RolloutId != "" {
		return nil, rolloutInProgress(old)
	}
	last := &musterv1.Config{Name: old.Name, Kind: old.Kind, Description: old.Description, CreateTime: old.CreateTime,
		UpdateTime: s.c.nowStamp(), LatestVersion: c.configs.catalog.lastNumber(req.Name)}
	ops := []store.Op{
		{Kind: store.Delete, Space: spaceConfig, Key: cfgKey(req.Name), If: store.AtRev(rev)},
		{Kind: store.Put, Space: spaceConfig, Key: goneKey(req.Name), Value: encode(last)},
	}
	if old := c.configs.catalog.oldestGone(maxGone); old != "" && old != req.Name {
		ops = append(ops, store.Op{Kind: store.Delete, Space: spaceConfig, Key: goneKey(old)})
	}
	if err := c.commitWanted(ctx, ops...); err != nil {
		return nil, err
	}
	c.configs.tidySoon()
	return &musterv1.DeleteConfigResponse{}, nil
}

// stored returns a config as it is stored, with the revision of its row, or nil.
func (k *configs) stored(ctx context.Context, name string) (*musterv1.Config, store.Rev, error) {
	kvs, err := k.c.store.Get(ctx, spaceConfig, cfgKey(name))
	if err != nil || kvs[0].Rev == 0 {
		return nil, 0, err
	}
	h, err := readHead(kvs[0])
	if err != nil {
		return nil, 0, err
	}
	return h.config, h.rev, nil
}

// putHead is the write of a config's row over that of revision rev; it sets the
// row's etag.
func putHead(row *musterv1.Config, rev store.Rev) store.Op {
	row.Etag, row.Counts = "", nil
	op := store.Op{Kind: store.Put, Space: spaceConfig, Key: cfgKey(row.Name), Value: encode(row), If: atRev(rev)}
	row.Etag = etagOf(op.Value)
	return op
}

// update changes a config's row together with other rows: for whoever decides
// about a config besides its operator. It fails with NOT_FOUND when there is
// none, and holds changing: do not call it with that held.
func (k *configs) update(ctx context.Context, name string, change func(*musterv1.Config) error, more ...store.Op) (*musterv1.Config, error) {
	k.changing.Lock()
	defer k.changing.Unlock()
	old, rev, err := k.stored(ctx, name)
	if err != nil {
		return nil, err
	}
	if old == nil {
		return nil, notFound("config", name)
	}
	row := proto.CloneOf(old)
	if err := change(row); err != nil {
		return nil, err
	}
	row.UpdateTime = k.c.nowStamp()
	row.Bindings = sortedBindings(row.Bindings)
	return row, k.c.commitWanted(ctx, append([]store.Op{putHead(row, rev)}, more...)...)
}
