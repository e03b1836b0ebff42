//go:build long

package e2e

import (
	"testing"
	"time"
)

// With the default of five minutes.
func TestC051StoppedCoordinatorTakesNobodyOfflineByDefault(t *testing.T) {
	t.Parallel()
	showPauses(t, 200, 15*time.Minute, 10, 270*time.Second)
}
