//go:build long

package coordinator

import "testing"

func TestC112FileReachesAPlateauOver50000(t *testing.T) {
	t.Parallel()
	showPlateau(t, Config{KeepCommands: 1000}, 50_000)
}
