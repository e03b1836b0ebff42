package coordinator

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// keyService answers for the resource keys.
type keyService struct {
	musterv1.UnimplementedKeysServer
	c  *Coordinator
	mu sync.Mutex // one decision at a time
}

func (s *keyService) ListKeys(_ context.Context, req *musterv1.ListKeysRequest) (*musterv1.ListKeysResponse, error) {
	after, err := pageStart(req.PageToken, "keys")
	if err != nil {
		return nil, err
	}
	ids := behind(s.c.keys.ids(), after)
	resp := &musterv1.ListKeysResponse{}
	i, size := 0, pageSize(req.PageSize)
	for ; i < len(ids) && len(resp.Keys) < size; i++ {
		k := s.c.keys.get(ids[i])
		if k != nil && (req.State == 0 || k.State == req.State) {
			resp.Keys = append(resp.Keys, k)
		}
	}
	if i < len(ids) {
		resp.NextPageToken = pageToken("keys", ids[i-1])
	}
	return resp, nil
}

func (s *keyService) GetKey(_ context.Context, req *musterv1.GetKeyRequest) (*musterv1.Key, error) {
	if k := s.c.keys.get(req.Id); k != nil {
		return k, nil
	}
	return nil, notFound("key", req.Id)
}

func (s *keyService) ApproveKey(ctx context.Context, req *musterv1.ApproveKeyRequest) (*musterv1.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.c.keys.get(req.Id)
	if k == nil {
		return nil, notFound("key", req.Id)
	}
	id := req.AgentId
	if id == "" {
		id = k.AgentId
	}
	if !agentIDForm.MatchString(id) {
		return nil, invalid("agent_id", "%.150q is not an agent id; the key asks for none, so give one", id)
	}
	if k.State == musterv1.Key_APPROVED && k.AgentId == id {
		return k, nil
	}
	if k.State == musterv1.Key_APPROVED {
		return nil, fail(codes.FailedPrecondition, "KEY_BOUND", fmt.Sprintf("key %s is bound to agent %q; revoke it first", k.Id, k.AgentId))
	}
	if other := s.c.keys.holderOf(id); other != "" && other != k.Id {
		return nil, fail(codes.AlreadyExists, "AGENT_HAS_KEY", fmt.Sprintf("agent %q has key %s; revoke that one first", id, other))
	}
	return s.c.decide(ctx, k, musterv1.Key_APPROVED, id)
}

func (s *keyService) RevokeKey(ctx context.Context, req *musterv1.RevokeKeyRequest) (*musterv1.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.c.keys.get(req.Id)
	if k == nil {
		return nil, notFound("key", req.Id)
	}
	if k.State == musterv1.Key_REVOKED {
		return k, nil
	}
	return s.c.decide(ctx, k, musterv1.Key_REVOKED, k.AgentId)
}
