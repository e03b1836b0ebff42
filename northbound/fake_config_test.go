package northbound

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// told is the answer of a fake to a request: f's, or Unimplemented without one.
func told[Q, R any](f func(*Q) (*R, error), request *Q) (*R, error) {
	if f == nil {
		return nil, status.Error(codes.Unimplemented, "the fake has no answer")
	}
	return f(request)
}

type fakeGroups struct {
	musterv1.UnimplementedGroupsServer
	put     func(*musterv1.PutGroupRequest) (*musterv1.Group, error)
	get     func(*musterv1.GetGroupRequest) (*musterv1.Group, error)
	remove  func(*musterv1.DeleteGroupRequest) (*musterv1.DeleteGroupResponse, error)
	list    func(*musterv1.ListGroupsRequest) (*musterv1.ListGroupsResponse, error)
	members func(*musterv1.ListGroupAgentsRequest) (*musterv1.ListGroupAgentsResponse, error)
	preview func(*musterv1.PreviewGroupRequest) (*musterv1.PreviewGroupResponse, error)
}

func (f *fakeGroups) PutGroup(_ context.Context, r *musterv1.PutGroupRequest) (*musterv1.Group, error) {
	return told(f.put, r)
}
func (f *fakeGroups) GetGroup(_ context.Context, r *musterv1.GetGroupRequest) (*musterv1.Group, error) {
	return told(f.get, r)
}
func (f *fakeGroups) DeleteGroup(_ context.Context, r *musterv1.DeleteGroupRequest) (*musterv1.DeleteGroupResponse, error) {
	return told(f.remove, r)
}
func (f *fakeGroups) ListGroups(_ context.Context, r *musterv1.ListGroupsRequest) (*musterv1.ListGroupsResponse, error) {
	return told(f.list, r)
}
func (f *fakeGroups) ListGroupAgents(_ context.Context, r *musterv1.ListGroupAgentsRequest) (*musterv1.ListGroupAgentsResponse, error) {
	return told(f.members, r)
}
func (f *fakeGroups) PreviewGroup(_ context.Context, r *musterv1.PreviewGroupRequest) (*musterv1.PreviewGroupResponse, error) {
	return told(f.preview, r)
}

type fakeConfigs struct {
	musterv1.UnimplementedConfigsServer
	put      func(*musterv1.PutConfigRequest) (*musterv1.Config, error)
	get      func(*musterv1.GetConfigRequest) (*musterv1.Config, error)
	remove   func(*musterv1.DeleteConfigRequest) (*musterv1.DeleteConfigResponse, error)
	list     func(*musterv1.ListConfigsRequest) (*musterv1.ListConfigsResponse, error)
	preview  func(*musterv1.PreviewConfigRequest) (*musterv1.PreviewConfigResponse, error)
	create   func(*musterv1.CreateConfigVersionRequest) (*musterv1.ConfigVersion, error)
	version  func(*musterv1.GetConfigVersionRequest) (*musterv1.ConfigVersion, error)
	versions func(*musterv1.ListConfigVersionsRequest) (*musterv1.ListConfigVersionsResponse, error)
	content  func(*musterv1.ReadConfigContentRequest, func(data string) error) error
	diff     func(*musterv1.DiffConfigRequest) (*musterv1.DiffConfigResponse, error)
	status   func(*musterv1.ListConfigStatusRequest) (*musterv1.ListConfigStatusResponse, error)
	ofAgent  func(*musterv1.GetAgentConfigsRequest) (*musterv1.GetAgentConfigsResponse, error)
}

func (f *fakeConfigs) PutConfig(_ context.Context, r *musterv1.PutConfigRequest) (*musterv1.Config, error) {
	return told(f.put, r)
}
func (f *fakeConfigs) GetConfig(_ context.Context, r *musterv1.GetConfigRequest) (*musterv1.Config, error) {
	return told(f.get, r)
}
func (f *fakeConfigs) DeleteConfig(_ context.Context, r *musterv1.DeleteConfigRequest) (*musterv1.DeleteConfigResponse, error) {
	return told(f.remove, r)
}
func (f *fakeConfigs) ListConfigs(_ context.Context, r *musterv1.ListConfigsRequest) (*musterv1.ListConfigsResponse, error) {
	return told(f.list, r)
}
func (f *fakeConfigs) PreviewConfig(_ context.Context, r *musterv1.PreviewConfigRequest) (*musterv1.PreviewConfigResponse, error) {
	return told(f.preview, r)
}
func (f *fakeConfigs) CreateConfigVersion(_ context.Context, r *musterv1.CreateConfigVersionRequest) (*musterv1.ConfigVersion, error) {
	return told(f.create, r)
}
func (f *fakeConfigs) GetConfigVersion(_ context.Context, r *musterv1.GetConfigVersionRequest) (*musterv1.ConfigVersion, error) {
	return told(f.version, r)
}
func (f *fakeConfigs) ListConfigVersions(_ context.Context, r *musterv1.ListConfigVersionsRequest) (*musterv1.ListConfigVersionsResponse, error) {
	return told(f.versions, r)
}
func (f *fakeConfigs) ReadConfigContent(r *musterv1.ReadConfigContentRequest, s grpc.ServerStreamingServer[musterv1.ConfigContentPart]) error {
	if f.content == nil {
		return f.UnimplementedConfigsServer.ReadConfigContent(r, s)
	}
	return f.content(r, func(data string) error { return s.Send(&musterv1.ConfigContentPart{Data: []byte(data)}) })
}
func (f *fakeConfigs) DiffConfig(_ context.Context, r *musterv1.DiffConfigRequest) (*musterv1.DiffConfigResponse, error) {
	return told(f.diff, r)
}
func (f *fakeConfigs) ListConfigStatus(_ context.Context, r *musterv1.ListConfigStatusRequest) (*musterv1.ListConfigStatusResponse, error) {
	return told(f.status, r)
}
func (f *fakeConfigs) GetAgentConfigs(_ context.Context, r *musterv1.GetAgentConfigsRequest) (*musterv1.GetAgentConfigsResponse, error) {
	return told(f.ofAgent, r)
}

type fakeRollouts struct {
	musterv1.UnimplementedConfigRolloutsServer
	create  func(*musterv1.CreateConfigRolloutRequest) (*musterv1.ConfigRollout, error)
	get     func(context.Context, *musterv1.GetConfigRolloutRequest) (*musterv1.ConfigRollout, error)
	list    func(*musterv1.ListConfigRolloutsRequest) (*musterv1.ListConfigRolloutsResponse, error)
	targets func(*musterv1.ListRolloutTargetsRequest) (*musterv1.ListRolloutTargetsResponse, error)
	control func(word string, r *musterv1.ControlConfigRolloutRequest) (*musterv1.ConfigRollout, error)
}

func (f *fakeRollouts) CreateConfigRollout(_ context.Context, r *musterv1.CreateConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
	return told(f.create, r)
}
func (f *fakeRollouts) GetConfigRollout(ctx context.Context, r *musterv1.GetConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
	if f.get == nil {
		return f.UnimplementedConfigRolloutsServer.GetConfigRollout(ctx, r)
	}
	return f.get(ctx, r)
}
func (f *fakeRollouts) ListConfigRollouts(_ context.Context, r *musterv1.ListConfigRolloutsRequest) (*musterv1.ListConfigRolloutsResponse, error) {
	return told(f.list, r)
}
func (f *fakeRollouts) ListRolloutTargets(_ context.Context, r *musterv1.ListRolloutTargetsRequest) (*musterv1.ListRolloutTargetsResponse, error) {
	return told(f.targets, r)
}
func (f *fakeRollouts) steer(word string, r *musterv1.ControlConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
	if f.control == nil {
		return nil, status.Error(codes.Unimplemented, "the fake has no answer")
	}
	return f.control(word, r)
}
func (f *fakeRollouts) PauseConfigRollout(_ context.Context, r *musterv1.ControlConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
	return f.steer("pause", r)
}
func (f *fakeRollouts) ResumeConfigRollout(_ context.Context, r *musterv1.ControlConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
	return f.steer("resume", r)
}
func (f *fakeRollouts) AbortConfigRollout(_ context.Context, r *musterv1.ControlConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
	return f.steer("abort", r)
}

// empty answers each request with the zero answer.
func empty[Q, R any](*Q) (*R, error) { return new(R), nil }

// work makes the fakes of groups, configs and rollouts answer everything.
func (c *coordinator) work() {
	c.groups = fakeGroups{
		put: func(r *musterv1.PutGroupRequest) (*musterv1.Group, error) {
			made := proto.CloneOf(r.GetGroup())
			made.Etag = "e1"
			return made, nil
		},
		get: func(r *musterv1.GetGroupRequest) (*musterv1.Group, error) {
			return &musterv1.Group{Name: r.GetName(), Etag: "e1"}, nil
		},
		remove:  empty[musterv1.DeleteGroupRequest, musterv1.DeleteGroupResponse],
		list:    empty[musterv1.ListGroupsRequest, musterv1.ListGroupsResponse],
		members: empty[musterv1.ListGroupAgentsRequest, musterv1.ListGroupAgentsResponse],
		preview: empty[musterv1.PreviewGroupRequest, musterv1.PreviewGroupResponse],
	}
	c.configs = fakeConfigs{
		put: func(r *musterv1.PutConfigRequest) (*musterv1.Config, error) {
			made := proto.CloneOf(r.GetConfig())
			made.Etag = "e1"
			return made, nil
		},
		get: func(r *musterv1.GetConfigRequest) (*musterv1.Config, error) {
			return &musterv1.Config{Name: r.GetName(), Etag: "e1"}, nil
		},
		remove:  empty[musterv1.DeleteConfigRequest, musterv1.DeleteConfigResponse],
		list:    empty[musterv1.ListConfigsRequest, musterv1.ListConfigsResponse],
		preview: empty[musterv1.PreviewConfigRequest, musterv1.PreviewConfigResponse],
		create: func(r *musterv1.CreateConfigVersionRequest) (*musterv1.ConfigVersion, error) {
			return &musterv1.ConfigVersion{Config: r.GetConfig(), Version: 1, Size: uint32(len(r.GetContent()))}, nil
		},
		version: func(r *musterv1.GetConfigVersionRequest) (*musterv1.ConfigVersion, error) {
			return &musterv1.ConfigVersion{Config: r.GetConfig(), Version: r.GetVersion(), Sha256: "00ff"}, nil
		},
		versions: empty[musterv1.ListConfigVersionsRequest, musterv1.ListConfigVersionsResponse],
		content:  func(*musterv1.ReadConfigContentRequest, func(string) error) error { return nil },
		diff:     empty[musterv1.DiffConfigRequest, musterv1.DiffConfigResponse],
		status:   empty[musterv1.ListConfigStatusRequest, musterv1.ListConfigStatusResponse],
		ofAgent:  empty[musterv1.GetAgentConfigsRequest, musterv1.GetAgentConfigsResponse],
	}
	c.rollouts = fakeRollouts{
		create: func(r *musterv1.CreateConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
			made := proto.CloneOf(r.GetRollout())
			made.Id = "01R"
			return made, nil
		},
		get: func(_ context.Context, r *musterv1.GetConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
			return &musterv1.ConfigRollout{Id: r.GetId()}, nil
		},
		list:    empty[musterv1.ListConfigRolloutsRequest, musterv1.ListConfigRolloutsResponse],
		targets: empty[musterv1.ListRolloutTargetsRequest, musterv1.ListRolloutTargetsResponse],
		control: func(_ string, r *musterv1.ControlConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
			return &musterv1.ConfigRollout{Id: r.GetId(), StateReason: r.GetReason()}, nil
		},
	}
	c.agents.forget = empty[musterv1.DeleteAgentRequest, musterv1.DeleteAgentResponse]
}
