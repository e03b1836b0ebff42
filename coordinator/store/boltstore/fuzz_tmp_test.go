package boltstore_test
import ("testing";"bytes";"math/rand/v2";"path/filepath";"os";"strings";"encoding/binary")
func TestTmpFuzz(t *testing.T) {
	good := usedFile(t)
	page := os.Getpagesize()
	dir := t.TempDir()
	seen := map[int]int{}
	for i := range 600 {
		r := rand.New(rand.NewPCG(uint64(i), 7))
		bad := bytes.Clone(good)
		desc := ""
		if i%2 == 0 {
			// structure bytes: page headers and element tables
			for range 1 + r.IntN(3) {
				p := r.IntN(len(bad) / page)
				off := p*page + 8 + r.IntN(80)
				bad[off] ^= byte(1 << r.IntN(8))
			}
		} else {
			p := 2 + r.IntN(len(bad)/page-2)
			if bad[p*page+8] == 1 { // branch: child to self or other
				n := int(binary.NativeEndian.Uint16(bad[p*page+10:]))
				e := r.IntN(n)
				v := uint64(r.IntN(len(bad)/page + 3))
				if r.IntN(2) == 0 { v = uint64(p) }
				binary.NativeEndian.PutUint64(bad[p*page+16+e*16+8:], v)
				desc = "branch"
			} else { off := p*page + r.IntN(page); bad[off] ^= byte(1 << r.IntN(8)) }
		}
		path := filepath.Join(dir, "db")
		write(t, path, bad)
		t.Run(desc, func(t *testing.T) {
		code, out := runChild(t, "use", path)
		seen[code]++
		if code == 1 || code == 2 { t.Errorf("%d: %s", i, out) }
		if code == exitErrors && !strings.Contains(out, path) { t.Errorf("%d: %s", i, out) }
		})
	}
	t.Log(seen)
}
