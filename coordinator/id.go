package coordinator

import (
	"crypto/rand"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// ids makes command ids: ULIDs that never go back, even if the clock does.
type ids struct {
	mu      sync.Mutex
	last    ulid.ULID
	entropy *ulid.MonotonicEntropy
}

// newIDs makes ids that sort after last, the newest that was ever given.
func newIDs(last string) *ids {
	g := &ids{entropy: ulid.Monotonic(rand.Reader, 0)}
	g.last, _ = ulid.ParseStrict(last) // none or broken: the zero ULID, older than all
	return g
}

func (g *ids) next(now time.Time) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	ms := max(ulid.Timestamp(now), g.last.Time())
	id, err := ulid.New(ms, g.entropy)
	for err == nil && id.Compare(g.last) <= 0 { // same millisecond as an id of an earlier run
		ms++
		id, err = ulid.New(ms, g.entropy)
	}
	if err != nil {
		return "", fmt.Errorf("command id: %w", err)
	}
	g.last = id
	return id.String(), nil
}

var (
	agentIDForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	typeForm    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
)

func isCommandID(s string) bool {
	_, err := ulid.ParseStrict(s)
	return err == nil && len(s) == ulid.EncodedSize
}
