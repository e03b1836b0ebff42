package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// durationOf reads a time as people write it: 90s, 1h30m or 7d.
func durationOf(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%q: want such as 90s, 1h30m or 7d", text)
}

// timeOf reads a moment: so long ago, a day, or to the second.
func timeOf(text string, now time.Time) (time.Time, error) {
	if d, err := durationOf(text); err == nil {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q: want 2h, 7d, 2026-11-30 or 2026-11-30T06:33:20Z", text)
}

// bytesOf reads a size above 0: a number, or one with B, KiB, MiB, GiB or TiB.
func bytesOf(text string) (int64, error) {
	number := strings.TrimRight(text, "KMGTiB ")
	unit, known := map[string]int64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[strings.TrimSpace(text[len(number):])]
	n, err := strconv.ParseInt(number, 10, 64)
	if !known || err != nil || n <= 0 || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q: want a size above 0 such as 500MiB or 64GiB", text)
	}
	return n * unit, nil
}
