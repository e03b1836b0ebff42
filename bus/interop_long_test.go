//go:build long

package bus_test

import (
	"testing"
	"time"
)

func TestLibzmqHeartbeatsForAMinute(t *testing.T) {
	nullAndCurve(t, func(t *testing.T, sealed bool) { t.Parallel(); stay(t, sealed, time.Minute) })
}
