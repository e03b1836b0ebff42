package northbound

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

var errDuration = errors.New(`must be a duration such as "250ms", "90s", "1h30m" or "7d"`)

const day = 24 * time.Hour

// parseDuration reads what time.ParseDuration does, and whole days in front.
func parseDuration(text string) (time.Duration, error) {
	var days time.Duration
	if whole, rest, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseUint(whole, 10, 32)
		if err != nil || n > uint64(math.MaxInt64/day) {
			return 0, errDuration
		}
		if days = time.Duration(n) * day; rest == "" {
			return days, nil
		}
		text = rest
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil || strings.HasPrefix(text, "+"):
		return 0, errDuration
	case strings.HasPrefix(text, "-"):
		return 0, errors.New("must not be negative")
	case days+d < days:
		return 0, errDuration
	}
	return days + d, nil
}

// formatDuration writes "90s" as "1m30s" and "1h0m0s" as "1h".
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
