package coordinator

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// encode makes the bytes of a row. Rows are made from messages that were
// decoded or checked before, so that they can be encoded.
func encode(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("coordinator: row %T: %v", m, err))
	}
	return b
}

// errBadRow is a row that was read from the store and makes no sense.
var errBadRow = errors.New("cannot be read")

// decode reads a row's value into m.
func decode(key, value []byte, m proto.Message) error {
	if err := proto.Unmarshal(value, m); err != nil {
		return fmt.Errorf("row %q %w: %w", key, errBadRow, err)
	}
	return nil
}

// eachRow calls fn for every row under prefix behind the key after, in order.
func eachRow(ctx context.Context, s store.Store, space store.Space, prefix, after []byte, fn func(store.KV) error) error {
	for {
		page, err := s.Scan(ctx, space, store.Range{Prefix: prefix, After: after})
		if err != nil {
			return err
		}
		for _, kv := range page.Items {
			if err := fn(kv); err != nil {
				return err
			}
			after = kv.Key
		}
		if !page.More {
			return nil
		}
	}
}

// targetList reads a command's whole target list.
func targetList(ctx context.Context, s store.Store, id string) (list []string, err error) {
	err = eachRow(ctx, s, spaceBulk, []byte(targetsPrefix+id+"/"), nil, func(kv store.KV) error {
		row := &musterv1.TargetList{}
		if err := decode(kv.Key, kv.Value, row); err != nil {
			return err
		}
		list = append(list, row.AgentIds...)
		return nil
	})
	return list, err
}
