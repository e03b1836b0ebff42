package main

import (
	"testing"
	"time"
)

func TestTimeOf(t *testing.T) {
	now := time.Date(2026, 11, 30, 6, 33, 20, 0, time.Local)
	for text, want := range map[string]time.Time{
		"90m":                  now.Add(-90 * time.Minute),
		"7d":                   now.AddDate(0, 0, -7),
		"0s":                   now,
		"2026-11-29":           time.Date(2026, 11, 29, 0, 0, 0, 0, time.Local),
		"2026-11-29 10:20":     time.Date(2026, 11, 29, 10, 20, 0, 0, time.Local),
		"2026-11-29T10:20:30Z": time.Date(2026, 11, 29, 10, 20, 30, 0, time.UTC),
	} {
		if got, err := timeOf(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "-1d", "-1h", "yesterday", "2026-13-01", "99999999d"} {
		if got, err := timeOf(text, now); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestBytesOf(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "64GiB": 64 << 30, "10 MiB": 10 << 20, "3KiB": 3 << 10, "1TiB": 1 << 40, "5B": 5} {
		if got, err := bytesOf(text); err != nil || got != want {
			t.Errorf("%s: %d %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "GiB", "1.5GiB", "10GB", "9223372036854775807KiB"} {
		if got, err := bytesOf(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}
