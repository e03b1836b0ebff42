//go:build long

package e2e

import (
	"testing"
	"time"
)

func TestC046ResultsOutliveTenMinutes(t *testing.T) {
	t.Parallel()
	showOutage(t, 10*time.Minute)
}
