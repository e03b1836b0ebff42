package coordinator

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// contentOps are the writes of a version's content, in pieces.
func contentOps(ref configRef, content []byte) (ops []store.Op) {
	i := 0
	for part := range slices.Chunk(content, maxPiece) {
		ops = append(ops, store.Op{Kind: store.Put, Space: spaceBulk, Key: contentKey(ref.name, ref.version, i), Value: part})
		i++
	}
	return ops
}

// piece reads a piece of a version's content, of size bytes in all.
func (k *configs) piece(ctx context.Context, ref configRef, size uint32, i int) ([]byte, error) {
	want := min(maxPiece, int(size)-i*maxPiece)
	kvs, err := k.c.store.Get(ctx, spaceBulk, contentKey(ref.name, ref.version, i))
	if err != nil {
		return nil, err
	}
	if len(kvs[0].Value) == want {
		return kvs[0].Value, nil
	}
	if !k.catalog.has(ref.name, ref.version) {
		return nil, fail(codes.NotFound, "NOT_FOUND", fmt.Sprintf("version %d of config %q was removed", ref.version, ref.name))
	}
	return nil, fmt.Errorf("config %q, version %d: piece %d has %d bytes, want %d", ref.name, ref.version, i, len(kvs[0].Value), want)
}

// content reads the whole content of a version, and checks that it is what was
// stored.
func (k *configs) content(ctx context.Context, v *musterv1.ConfigVersion) ([]byte, error) {
	all := make([]byte, 0, v.Size)
	for i := 0; len(all) < int(v.Size); i++ {
		part, err := k.piece(ctx, configRef{v.Config, v.Version}, v.Size, i)
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
	}
	if sha256Hex(all) != v.Sha256 {
		return nil, fmt.Errorf("config %q, version %d: the stored content is not what was put", v.Config, v.Version)
	}
	return all, nil
}

// ReadConfigContent streams the content of a version as it was put.
func (s *configService) ReadConfigContent(req *musterv1.ReadConfigContentRequest, out musterv1.Configs_ReadConfigContentServer) error {
	ref := configRef{req.Config, req.Version}
	v, err := s.c.configs.version(out.Context(), ref)
	if err != nil {
		return err
	}
	if err := out.SendHeader(nil); err != nil { // also when the content is empty
		return err
	}
	for i := 0; i*maxPiece < int(v.Size); i++ {
		part, err := s.c.configs.piece(out.Context(), ref, v.Size, i)
		if err != nil {
			return err
		}
		if err := out.Send(&musterv1.ConfigContentPart{Data: part}); err != nil {
			return err
		}
	}
	return nil
}

// clearStaged removes content whose version was never stored. changing is held.
func (k *configs) clearStaged(ctx context.Context, ref configRef) error {
	key := stagedKey(ref.name, ref.version)
	kvs, err := k.c.store.Get(ctx, spaceConfig, key)
	if err != nil || kvs[0].Rev == 0 {
		return err
	}
	return k.remove(ctx, ref, store.Op{Kind: store.Delete, Space: spaceConfig, Key: key})
}

// remove deletes a version's content together with the row that says it is there.
func (k *configs) remove(ctx context.Context, ref configRef, row store.Op) error {
	ops := []store.Op{row}
	for i := 0; i*maxPiece < maxContent; i++ {
		ops = append(ops, store.Op{Kind: store.Delete, Space: spaceBulk, Key: contentKey(ref.name, ref.version, i)})
	}
	_, err := k.c.store.Commit(ctx, store.Batch{Ops: ops})
	return err
}
