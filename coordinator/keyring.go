package coordinator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/bus"
	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// maxPending is how many undecided keys are remembered; past that the one that
// was not seen for longest is forgotten, until its holder comes again.
const maxPending = 1000

// Errors that Authorize gives to a peer that is not let in.
var (
	ErrKeyPending = errors.New("coordinator: the key waits for approval")
	ErrKeyRevoked = errors.New("coordinator: the key is revoked")
)

// keyring knows which keys may come in and as whom. Decisions are in the store;
// keys that wait for one are in memory only.
type keyring struct {
	mu      sync.RWMutex
	decided map[string]*musterv1.Key // by id; never changed, only replaced
	pending map[string]*musterv1.Key
	holder  map[string]string // id of the approved key, by agent id
}

func newKeyring() *keyring {
	return &keyring{decided: map[string]*musterv1.Key{}, pending: map[string]*musterv1.Key{}, holder: map[string]string{}}
}

// Authorize says which agent the holder of a key is, or why it is not let in:
// ErrKeyPending or ErrKeyRevoked. An unknown key is noted for an operator to
// decide, with the agent id that its holder asks for. It is for bus.CurveServer,
// does not block and may be called concurrently.
func (c *Coordinator) Authorize(who bus.Candidate) (agentID string, err error) {
	id := who.Public.Fingerprint()
	c.keys.mu.Lock()
	defer c.keys.mu.Unlock()
	if k := c.keys.decided[id]; k != nil {
		if k.State == musterv1.Key_APPROVED {
			return k.AgentId, nil
		}
		return "", ErrKeyRevoked
	}
	now := c.nowStamp()
	asks := who.Identity
	if !agentIDForm.MatchString(asks) {
		asks = ""
	}
	k := &musterv1.Key{Id: id, PublicKey: who.Key, State: musterv1.Key_PENDING, AgentId: asks, Address: who.Addr.String(), FirstSeen: now, LastSeen: now}
	if old := c.keys.pending[id]; old != nil {
		k.FirstSeen = old.FirstSeen
	} else {
		c.keys.makeRoomLocked()
		c.log.Warn("an unknown key waits for approval", "key", id, "agent", asks, "addr", who.Addr)
	}
	c.keys.pending[id] = k
	return "", ErrKeyPending
}

func (r *keyring) makeRoomLocked() {
	if len(r.pending) < maxPending {
		return
	}
	oldest := ""
	for id, k := range r.pending {
		if oldest == "" || k.LastSeen.AsTime().Before(r.pending[oldest].LastSeen.AsTime()) {
			oldest = id
		}
	}
	delete(r.pending, oldest)
}

func (r *keyring) get(id string) *musterv1.Key {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if k := r.decided[id]; k != nil {
		return k
	}
	return r.pending[id]
}

// allows reports whether the holder of the key in text may be this agent.
func (r *keyring) allows(z85, agentID string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	k := r.decided[r.holder[agentID]]
	return k != nil && k.State == musterv1.Key_APPROVED && k.PublicKey == z85
}

func (r *keyring) ids() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	ids := slices.Collect(maps.Keys(r.decided))
	for id := range r.pending {
		if r.decided[id] == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// set takes a decision that is stored.
func (r *keyring) set(k *musterv1.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.decided[k.Id]; old != nil && r.holder[old.AgentId] == k.Id {
		delete(r.holder, old.AgentId)
	}
	delete(r.pending, k.Id)
	r.decided[k.Id] = k
	if k.State == musterv1.Key_APPROVED {
		r.holder[k.AgentId] = k.Id
	}
}

func (r *keyring) holderOf(agentID string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.holder[agentID]
}

func (c *Coordinator) loadKeys(ctx context.Context) error {
	return c.each(ctx, spaceFleet, keyPrefix, func(kv store.KV) error {
		k := &musterv1.Key{}
		if err := decode(kv.Key, kv.Value, k); err != nil {
			return err
		}
		c.keys.set(k)
		return nil
	})
}

// decide stores what an operator decided about a key, and acts on it. One
// decision at a time, so that two keys cannot get one agent id.
func (c *Coordinator) decide(ctx context.Context, k *musterv1.Key, to musterv1.Key_State, agentID string) (*musterv1.Key, error) {
	k = proto.CloneOf(k)
	k.State, k.AgentId, k.DecideTime = to, agentID, c.nowStamp()
	k.LastSeen = nil
	_, err := c.store.Commit(ctx, store.Batch{Ops: []store.Op{{Kind: store.Put, Space: spaceFleet, Key: keyKey(k.Id), Value: encode(k)}}})
	if err != nil {
		return nil, err
	}
	c.keys.set(k)
	c.log.Info("key decided", "key", k.Id, "state", to.String(), "agent", agentID)
	if to == musterv1.Key_REVOKED {
		c.cutHolder(k)
	}
	return k, nil
}

// cutHolder closes the link of whoever is connected with a key.
func (c *Coordinator) cutHolder(k *musterv1.Key) {
	if s := c.fleet.linkOf(k.AgentId); s != nil && s.peer.Key() == k.PublicKey {
		s.peer.Close(ErrKeyRevoked)
	}
}
