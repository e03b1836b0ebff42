package coordinator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// onceKey makes one request out of many with the same Idempotency-Key: its row
// is committed together with what the request makes. The zero onceKey is for
// requests without one.
type onceKey struct {
	row  []byte // key of the row
	hash [32]byte
}

func newOnceKey(ctx context.Context, operation, key string, req proto.Message) (onceKey, error) {
	if key == "" {
		return onceKey{}, nil
	}
	if len(key) > 255 {
		return onceKey{}, invalid("idempotency_key", "%d bytes, at most 255", len(key))
	}
	for _, r := range key {
		if r < 0x20 || r == 0x7f {
			return onceKey{}, invalid("idempotency_key", "control characters are not allowed")
		}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return onceKey{}, invalid("request", "%v", err)
	}
	scope := sha256Hex([]byte(tokenName(ctx) + "\x00" + operation + "\x00" + key))
	return onceKey{row: []byte(idemPrefix + scope), hash: sha256.Sum256(b)}, nil
}

// op is the row that goes with what was made.
func (k onceKey) op(id string, made *timestamppb.Timestamp) store.Op {
	row := &musterv1.Idempotency{Sha256: k.hash[:], CommandId: id, CreateTime: timestamppb.New(made.AsTime())}
	return store.Op{Kind: store.Put, Space: spaceHistory, Key: k.row, Value: encode(row), If: store.Absent()}
}

// earlier returns the id of what this key made before, or "".
func (c *Coordinator) earlier(ctx context.Context, k onceKey) (string, error) {
	if k.row == nil {
		return "", nil
	}
	kvs, err := c.store.Get(ctx, spaceHistory, k.row)
	if err != nil || kvs[0].Rev == 0 {
		return "", err
	}
	row := &musterv1.Idempotency{}
	if err := decode(kvs[0].Key, kvs[0].Value, row); err != nil {
		return "", err
	}
	if !bytes.Equal(row.Sha256, k.hash[:]) {
		return "", fail(codes.AlreadyExists, "IDEMPOTENCY_KEY_REUSED", fmt.Sprintf("the Idempotency-Key was used for another request, which made %s", row.CommandId))
	}
	return row.CommandId, nil
}
