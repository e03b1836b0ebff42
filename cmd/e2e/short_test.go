//go:build !long

package e2e

import "time"

// How much of a case the everyday run shows; see long_test.go.
const (
	unknownKeyFor = 5 * time.Second // C028
)
