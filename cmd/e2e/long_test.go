//go:build long

package e2e

import "time"

// The cases in full.
const (
	unknownKeyFor = time.Minute // C028
)
