package coordinator

import (
	"encoding/base64"
	"slices"
	"strings"
)

const (
	defaultPage  = 50
	maxPage      = 1000
	maxPageBytes = 2 << 20 // a page ends early rather than grow past a gRPC message
)

func pageSize(n uint32) int {
	if n == 0 {
		return defaultPage
	}
	return int(min(n, maxPage))
}

// pageToken is where the next page goes on: after the last key of this one. It
// holds nothing else, so it outlives restarts and the row itself.
func pageToken(list, last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(digest(list) + "\x00" + last))
}

// digest keeps tokens short: a list's name may hold a whole filter.
func digest(list string) string { return sha256Hex([]byte(list))[:16] }

func pageStart(token, list string) (after string, err error) {
	if token == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err == nil && len(raw) < 512 {
		if of, last, ok := strings.Cut(string(raw), "\x00"); ok && of == digest(list) && last != "" {
			return last, nil
		}
	}
	return "", invalid("page_token", "not a token of this list")
}

// pageOf cuts a page out of a sorted list that is in memory, and makes the token
// of the next one.
func pageOf(sorted []string, token, list string, size int) (page []string, next string, err error) {
	after, err := pageStart(token, list)
	if err != nil {
		return nil, "", err
	}
	rest := behind(sorted, after)
	if page = rest[:min(len(rest), size)]; len(page) < len(rest) {
		next = pageToken(list, page[len(page)-1])
	}
	return page, next, nil
}

// behind returns what comes after a key in a sorted list; the key need not be in it.
func behind(sorted []string, key string) []string {
	i, found := slices.BinarySearch(sorted, key)
	if found {
		i++
	}
	return sorted[i:]
}
