package commands

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// keys are those of a coordinator and its agents.
type keys struct {
	server string // public, in Z85
	file   string // the agents' secret keys, one a line
}

// makeKeys makes a data folder in which n keys are approved, as if somebody had
// done so by hand, long ago.
func makeKeys(ctx context.Context, data string, n int) (k keys, err error) {
	public, secret, err := bus.NewKeyPair()
	if err != nil {
		return k, err
	}
	k = keys{server: public.String(), file: filepath.Join(data, "agents.keys")}
	if err := os.WriteFile(filepath.Join(data, keyFile), []byte(secret.Z85()+"\n"), 0o600); err != nil {
		return k, err
	}
	var lines strings.Builder
	var ops []store.Op
	now := timestamppb.Now()
	for i := range n {
		public, secret, err := bus.NewKeyPair()
		if err != nil {
			return k, err
		}
		lines.WriteString(secret.Z85() + "\n")
		row, err := proto.Marshal(&musterv1.Key{Id: public.Fingerprint(), PublicKey: public.String(),
			State: musterv1.Key_APPROVED, AgentId: agentID(i), FirstSeen: now, DecideTime: now})
		if err != nil {
			return k, err
		}
		ops = append(ops, store.Op{Space: "fleet", Key: []byte("key/" + public.Fingerprint()), Value: row})
	}
	return k, errors.Join(os.WriteFile(k.file, []byte(lines.String()), 0o600), putAll(ctx, data, ops))
}

func putAll(ctx context.Context, data string, ops []store.Op) error {
	db, err := boltstore.Open(filepath.Join(data, storeFile), boltstore.Options{}, coordinator.Spaces...)
	if err != nil {
		return err
	}
	for len(ops) > 0 && err == nil {
		n := min(len(ops), store.MaxOps)
		_, err = db.Commit(ctx, store.Batch{Ops: ops[:n]})
		ops = ops[n:]
	}
	return errors.Join(err, db.Close())
}
