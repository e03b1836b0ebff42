package coordinator

import (
	"errors"
	"net"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// candidate is a peer with the nth key that asks to be an agent.
func candidate(n int, asks string) bus.Candidate {
	k := bus.PublicKey{byte(n), byte(n >> 8)}
	return bus.Candidate{Key: k.String(), Public: k, Identity: asks, Addr: &net.TCPAddr{Port: 9}}
}

func TestKeyIsDecidedByAnOperator(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		s := &keyService{c: r.c}
		auth := func(n int, asks string) (string, error) {
			return r.c.Authorize(candidate(n, asks))
		}
		id := func(n int) string { return candidate(n, "").Public.Fingerprint() }
		if _, err := auth(1, "web-1"); !errors.Is(err, ErrKeyPending) {
			t.Fatalf("unknown key: %v", err)
		}
		list, err := s.ListKeys(t.Context(), &musterv1.ListKeysRequest{State: musterv1.Key_PENDING})
		if err != nil || len(list.Keys) != 1 || list.Keys[0].AgentId != "web-1" || list.Keys[0].Id != id(1) {
			t.Fatalf("pending: %v, %v", list, err)
		}
		if _, err := s.ApproveKey(t.Context(), &musterv1.ApproveKeyRequest{Id: id(1)}); err != nil {
			t.Fatal(err)
		}
		if agent, err := auth(1, "another"); agent != "web-1" || err != nil {
			t.Errorf("approved: %q, %v", agent, err)
		}

		auth(2, "web-1") // another key asks for the same agent (C036)
		_, err = s.ApproveKey(t.Context(), &musterv1.ApproveKeyRequest{Id: id(2)})
		if status.Code(err) != codes.AlreadyExists {
			t.Errorf("second key of an agent: %v", err)
		}
		if _, err := s.RevokeKey(t.Context(), &musterv1.RevokeKeyRequest{Id: id(1)}); err != nil {
			t.Fatal(err)
		}
		if _, err := auth(1, "web-1"); !errors.Is(err, ErrKeyRevoked) {
			t.Errorf("revoked: %v", err)
		}
		if _, err := s.ApproveKey(t.Context(), &musterv1.ApproveKeyRequest{Id: id(2)}); err != nil {
			t.Errorf("after the first was revoked: %v", err)
		}
		if text := candidate(2, "").Key; !r.c.keys.allows(text, "web-1") || r.c.keys.allows(text, "web-2") {
			t.Error("a key is bound to its agent and to no other")
		}
		if _, err := s.GetKey(t.Context(), &musterv1.GetKeyRequest{Id: "nope"}); status.Code(err) != codes.NotFound {
			t.Errorf("unknown: %v", err)
		}

		again, err := New(t.Context(), r.store, r.cfg) // decisions survive a restart
		if err != nil {
			t.Fatal(err)
		}
		if text := candidate(2, "").Key; !again.keys.allows(text, "web-1") {
			t.Error("an approval is gone after a restart")
		}
		again.fleet.stop()
	})
}

func TestPendingKeysAreBounded(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		for n := range maxPending + 50 {
			r.c.Authorize(candidate(n, "a/../b\n"))
		}
		if n := len(r.c.keys.pending); n != maxPending {
			t.Errorf("%d keys wait, want %d", n, maxPending)
		}
		for _, k := range r.c.keys.pending {
			if k.AgentId != "" {
				t.Fatalf("an id that is none is kept: %q", k.AgentId)
			}
		}
	})
}
