package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// CreateConfigVersion stores the next version of a config: its content first,
// and then, in one commit, the version. It reaches nobody by itself.
func (s *configService) CreateConfigVersion(ctx context.Context, req *musterv1.CreateConfigVersionRequest) (*musterv1.ConfigVersion, error) {
	if err := checkVersion(req); err != nil {
		return nil, err
	}
	k := s.c.configs
	k.changing.Lock()
	defer k.changing.Unlock()
	head, rev, err := k.stored(ctx, req.Config)
	if err != nil {
		return nil, err
	}
	if head == nil && req.Kind != 0 { // as if it were made before
		head = &musterv1.Config{Name: req.Config, Kind: req.Kind}
	}
	switch {
	case head == nil:
		return nil, notFound("config", req.Config)
	case req.Kind != 0 && req.Kind != head.Kind:
		return nil, wrongKind(head)
	}
	if req.BaseVersion != 0 && req.BaseVersion != head.LatestVersion {
		return nil, fail(codes.Aborted, "NOT_LATEST", fmt.Sprintf("config %q: version %d is the latest, not %d; look at it first", req.Config, head.LatestVersion, req.BaseVersion))
	}
	row, err := s.nextVersion(req, head)
	if err != nil {
		return nil, err
	}
	if req.UnlessSame && head.LatestVersion > 0 {
		latest, err := k.version(ctx, configRef{req.Config, head.LatestVersion})
		if err == nil && sameVersion(latest, row) {
			return latest, nil
		}
	}
	if req.DryRun {
		return row, nil
	}
	return row, k.storeVersion(ctx, head, rev, row, req.Content)
}

// checkVersion returns what is wrong with a request by itself.
func checkVersion(req *musterv1.CreateConfigVersionRequest) error {
	var f faults
	f.configName("config", req.Config)
	if len(req.Content) > maxContent {
		f.add("content", "%d bytes, at most %d", len(req.Content), maxContent)
	}
	if len(req.Note) > maxNote {
		f.add("note", "%d bytes, at most %d", len(req.Note), maxNote)
	}
	switch {
	case req.Kind < 0 || req.Kind > musterv1.Config_INSTANCE:
		f.add("kind", "PIPELINE or INSTANCE is needed")
	case req.Kind != 0 && !req.DryRun:
		f.add("kind", "goes with dry_run; the config has its kind")
	}
	if req.BaseVersion < 0 {
		f.add("base_version", "%d is no version", req.BaseVersion)
	}
	f.fileSpec(req.File)
	return f.err()
}

// nextVersion makes the row of the version that comes after all others.
func (s *configService) nextVersion(req *musterv1.CreateConfigVersionRequest, head *musterv1.Config) (*musterv1.ConfigVersion, error) {
	row := &musterv1.ConfigVersion{Config: head.Name, Size: uint32(len(req.Content)), Sha256: sha256Hex(req.Content),
		File: proto.CloneOf(req.File), Note: req.Note, CreateTime: s.c.nowStamp()}
	if head.Kind == musterv1.Config_INSTANCE {
		if _, err := parseObject(req.Content); err != nil {
			return nil, invalid("content", "an INSTANCE config is one JSON object: %v", err)
		}
	} else {
		if row.File == nil {
			row.File = &musterv1.FileSpec{}
		}
		row.File.Path = pathOf(head, row.File.Path)
	}
	path := pathOf(head, row.GetFile().GetPath())
	if other := s.c.configs.catalog.claimant(path, head.Name, head.Kind); other != "" {
		return nil, fail(codes.AlreadyExists, "PATH_TAKEN", fmt.Sprintf("path %q belongs to config %q", path, other))
	}
	last := s.c.configs.catalog.lastNumber(head.Name)
	if last == maxVersion {
		return nil, fail(codes.ResourceExhausted, "TOO_MANY_VERSIONS", fmt.Sprintf("config %q has had %d versions; use another name", head.Name, last))
	}
	row.Version = last + 1
	return row, nil
}

// sameVersion reports whether two versions are the same to an agent.
func sameVersion(a, b *musterv1.ConfigVersion) bool {
	return a.Sha256 == b.Sha256 && a.Size == b.Size && sameFile(a.File, b.File)
}

func sameFile(a, b *musterv1.FileSpec) bool {
	return proto.Size(a) == 0 && proto.Size(b) == 0 || proto.Equal(a, b)
}

// storeVersion writes a version's content and then the version with the head
// that names it: it is there whole or not at all. changing is held.
func (k *configs) storeVersion(ctx context.Context, head *musterv1.Config, rev store.Rev, row *musterv1.ConfigVersion, content []byte) error {
	ref := configRef{row.Config, row.Version}
	if err := k.clearStaged(ctx, ref); err != nil { // of an attempt that failed
		return err
	}
	head = proto.CloneOf(head)
	head.LatestVersion, head.UpdateTime = row.Version, row.CreateTime
	last := []store.Op{
		putHead(head, rev),
		{Kind: store.Put, Space: spaceConfig, Key: verKey(row.Config, row.Version), Value: encode(row), If: store.Absent()},
	}
	staged := store.Op{Kind: store.Put, Space: spaceConfig, Key: stagedKey(row.Config, row.Version)}
	rest, err := k.c.storeAhead(ctx, contentOps(ref, content), staged, sizeOf(last))
	if err == nil {
		err = k.c.commitWanted(ctx, append(rest, last...)...)
	}
	if err != nil || len(k.catalog.versionsOf(row.Config)) > keptVersions {
		k.tidySoon()
	}
	return err
}

// version reads a version, without content. It fails with NOT_FOUND.
func (k *configs) version(ctx context.Context, ref configRef) (*musterv1.ConfigVersion, error) {
	if !k.catalog.has(ref.name, ref.version) {
		if k.catalog.head(ref.name) == nil {
			return nil, notFound("config", ref.name)
		}
		return nil, fail(codes.NotFound, "NOT_FOUND", fmt.Sprintf("config %q has no version %d", ref.name, ref.version))
	}
	kvs, err := k.c.store.Get(ctx, spaceConfig, verKey(ref.name, ref.version))
	if err != nil {
		return nil, err
	}
	if kvs[0].Rev == 0 {
		return nil, fail(codes.NotFound, "NOT_FOUND", fmt.Sprintf("version %d of config %q was removed", ref.version, ref.name))
	}
	v := &musterv1.ConfigVersion{}
	return v, decode(kvs[0].Key, kvs[0].Value, v)
}

func (s *configService) GetConfigVersion(ctx context.Context, req *musterv1.GetConfigVersionRequest) (*musterv1.ConfigVersion, error) {
	return s.c.configs.version(ctx, configRef{req.Config, req.Version})
}

func (s *configService) ListConfigVersions(ctx context.Context, req *musterv1.ListConfigVersionsRequest) (*musterv1.ListConfigVersionsResponse, error) {
	if s.c.configs.catalog.head(req.Config) == nil {
		return nil, notFound("config", req.Config)
	}
	list := fmt.Sprintf("versions/%s/%v", req.Config, req.Ascending)
	after, err := pageStart(req.PageToken, list)
	if err != nil {
		return nil, err
	}
	numbers := s.c.configs.catalog.versionsOf(req.Config)
	if !req.Ascending {
		slices.Reverse(numbers)
	}
	if last, err := strconv.ParseInt(after, 10, 32); err == nil {
		numbers = slices.DeleteFunc(numbers, func(n int32) bool { return n == int32(last) || (n < int32(last)) == req.Ascending })
	}
	size := pageSize(req.PageSize)
	resp := &musterv1.ListConfigVersionsResponse{}
	if len(numbers) > size {
		numbers = numbers[:size]
		resp.NextPageToken = pageToken(list, strconv.Itoa(int(numbers[size-1])))
	}
	if len(numbers) == 0 {
		return resp, nil
	}
	keys := make([][]byte, len(numbers))
	for i, n := range numbers {
		keys[i] = verKey(req.Config, n)
	}
	kvs, err := s.c.store.Get(ctx, spaceConfig, keys...)
	if err != nil {
		return nil, err
	}
	bytes := 0
	for i, kv := range kvs {
		if kv.Rev == 0 {
			continue // removed meanwhile
		}
		v := &musterv1.ConfigVersion{}
		if err := decode(kv.Key, kv.Value, v); err != nil {
			return nil, err
		}
		resp.Versions = append(resp.Versions, v)
		if bytes += len(kv.Value); bytes > maxPageBytes && i < len(kvs)-1 {
			resp.NextPageToken = pageToken(list, strconv.Itoa(int(v.Version)))
			break
		}
	}
	return resp, nil
}
