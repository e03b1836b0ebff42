//go:build long

package e2e

import "testing"

func TestC106HistoryOf300000(t *testing.T) { showHistory(t, 300_000, 20_000) }
