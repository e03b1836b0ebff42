package northbound

// nearest is the name that a person who wrote key most likely meant, or "" when
// none is close.
func nearest(key string, names []string) string {
	if len(key) > 64 {
		return ""
	}
	best, limit := "", max(2, len(key)/3)+1
	for _, name := range names {
		if d := editDistance(key, name); d < limit && d < len(name) {
			best, limit = name, d
		}
	}
	return best
}

// editDistance counts the letters to insert, drop, change or swap with their
// neighbour to turn a into b.
func editDistance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := d[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			d[i][j] = min(change, d[i-1][j]+1, d[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
