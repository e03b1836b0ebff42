package coordinator

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

const adminToken = "admin"

// EnsureAdminToken makes the first token when the store has none: it writes it
// to path (0600) and its hash into the store. A file that is there already,
// because the store is new, is taken as it is. It must be called before New.
func EnsureAdminToken(ctx context.Context, s store.Store, path string) error {
	kvs, err := s.Get(ctx, spaceFleet, tokenKey(adminToken))
	if err != nil {
		return fmt.Errorf("admin token: %w", err)
	}
	if kvs[0].Rev != 0 {
		return nil
	}
	token, err := readToken(path)
	if errors.Is(err, fs.ErrNotExist) {
		token, err = writeToken(path)
	}
	if err != nil {
		return fmt.Errorf("admin token: %w", err)
	}
	row := &musterv1.Token{Sha256: hash(token), Name: adminToken, CreateTime: timestamppb.Now()}
	_, err = s.Commit(ctx, store.Batch{Ops: []store.Op{{Kind: store.Put, Space: spaceFleet, Key: tokenKey(adminToken), Value: encode(row)}}})
	if err != nil {
		return fmt.Errorf("admin token: %w", err)
	}
	return nil
}

func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if token := strings.TrimSpace(string(b)); len(token) >= 20 {
		return token, nil
	}
	return "", fmt.Errorf("%s holds no token; remove the file to have one made", path)
}

func writeToken(path string) (string, error) {
	raw := make([]byte, 32)
	rand.Read(raw)
	token := "mst_" + base64.RawURLEncoding.EncodeToString(raw)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(token + "\n")
	return token, errors.Join(err, f.Sync(), f.Close())
}

func hash(token string) []byte {
	h := sha256.Sum256([]byte(token))
	return h[:]
}

// tokens knows who may come in, by the hash of the token.
type tokens struct {
	mu     sync.RWMutex
	byHash map[string]*musterv1.Token
}

func loadTokens(ctx context.Context, c *Coordinator) (*tokens, error) {
	t := &tokens{byHash: map[string]*musterv1.Token{}}
	err := c.each(ctx, spaceFleet, tokenPrefix, func(kv store.KV) error {
		row := &musterv1.Token{}
		if err := decode(kv.Key, kv.Value, row); err != nil {
			return err
		}
		t.byHash[string(row.Sha256)] = row
		return nil
	})
	return t, err
}

// tokenContext is the context key of the token's name.
type tokenContext struct{}

// tokenName is the name of the token that a request came with.
func tokenName(ctx context.Context) string {
	name, _ := ctx.Value(tokenContext{}).(string)
	return name
}

// check returns a context that knows who asks, or UNAUTHENTICATED.
func (t *tokens) check(ctx context.Context, method string) (context.Context, error) {
	if strings.HasPrefix(method, "/grpc.health.v1.Health/") {
		return ctx, nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	for _, v := range md.Get("authorization") {
		scheme, token, _ := strings.Cut(v, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			continue
		}
		t.mu.RLock()
		row := t.byHash[string(hash(token))]
		t.mu.RUnlock()
		if row != nil {
			return context.WithValue(ctx, tokenContext{}, row.Name), nil
		}
	}
	return ctx, fail(codes.Unauthenticated, "UNAUTHENTICATED", "a valid bearer token is needed")
}

func (t *tokens) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := t.check(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (t *tokens) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if _, err := t.check(s.Context(), info.FullMethod); err != nil {
		return err
	}
	return next(srv, s)
}
