package agentd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// naughty are the strings of github.com/minimaxir/big-list-of-naughty-strings.
func naughty(t *testing.T) (all []string) {
	t.Helper()
	b, err := os.ReadFile("../coordinator/testdata/blns.json")
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil || len(all) < 400 {
		t.Fatalf("%d strings, %v", len(all), err)
	}
	return all
}

// roguish are names and paths that lead elsewhere, or nowhere. OUT is a folder
// outside of the config root.
func roguish(out string) []string {
	return []string{
		"", ".", "..", "../x", "../../x", "a/../../x", "a/../x", "./x", "a/./b", "a//b", "/x", "/etc/x", "//x", "a/", "/", out + "/x",
		"..%2fx", "%2e%2e/x", `..\x`, `\x`, `C:\x`, "CON", "x.", "x ", " x", ".x", "-x", "~", "~/x", "$HOME", "`id`", "$(id)",
		"x\x00y", "\x00", "x\ny", "\n", "x\r", "\t", "\x1b[31m", "\u202etxt", "\ufeffx", "\u2028",
		"caf\u00e9", "cafe\u0301", strings.Repeat("x", 129), strings.Repeat("x", 256), strings.Repeat("x", 300), strings.Repeat("é", 128),
		strings.Repeat("x/", 512) + "x", hiddenPrefix + "x", "a/" + hiddenPrefix + "x/b", "...", "....//x",
	}
}

// offerNames sends offers to an agent whose config root is deep in a folder, and
// checks that nothing is made in that folder beside the root.
func offerNames(t *testing.T, offers func(out string) []*musterv1.ConfigOffer, after func(*configRig)) {
	t.Helper()
	base := t.TempDir()
	r := newConfigRig(t)
	r.agent.stop()
	r.root = filepath.Join(base, "a", "b", "root")
	if err := os.MkdirAll(r.root, 0o755); err != nil {
		t.Fatal(err)
	}
	r.cfg.ConfigRoot = r.root
	r.restart()
	outside := func() string {
		files := slices.DeleteFunc(tree(t, base), func(f string) bool { return strings.HasPrefix(f, "a/b/root/") })
		return strings.Join(files, " ")
	}
	before := outside() + strings.Join(withoutRecords(tree(t, r.cfg.Dir)), " ")
	for some := range slices.Chunk(offers(base), 100) {
		r.answered(some...)
	}
	after(r)
	if got := outside() + strings.Join(withoutRecords(tree(t, r.cfg.Dir)), " "); got != before {
		t.Errorf("there was %q, and there is %q", before, got)
	}
}

// withoutRecords leaves out what the agent writes by itself.
func withoutRecords(files []string) []string {
	return slices.DeleteFunc(files, func(f string) bool {
		dir, name := filepath.Split(f)
		return dir == "held-configs/" && !strings.ContainsAny(name, " \\") || f == "journal"
	})
}

// answered offers configs and waits for what the agent says about each: a Nack,
// or how it ended.
func (r *configRig) answered(offers ...*musterv1.ConfigOffer) {
	r.t.Helper()
	r.c.mu.Lock()
	nacks := len(r.c.nacks)
	r.c.mu.Unlock()
	r.offer(offers...)
	r.c.until(r.t, fmt.Sprintf("answers to %d offers from %q at %q on", len(offers), offers[0].Name, offers[0].File.GetPath()), func() bool {
		n := len(r.c.nacks) - nacks
		for _, o := range offers {
			if s := r.c.statusOf(o.Name); s.GetStatus() > musterv1.ConfigStatus_APPLYING && s.Version == o.Version {
				n++
			}
		}
		return n >= len(offers)
	})
}

func TestC088Names(t *testing.T) {
	good := []string{"a", "A-1_x.y", "0", strings.Repeat("n", 128), "undefined", "a..b", "x."}
	var all []string
	offerNames(t, func(out string) (offers []*musterv1.ConfigOffer) {
		all = append(append(roguish(out), naughty(t)...), good...)
		slices.Sort(all)
		all = slices.Compact(all)
		for _, n := range all {
			offers = append(offers, version(n, 1, "x"))
		}
		return offers
	}, func(r *configRig) {
		want := slices.DeleteFunc(slices.Clone(all), func(n string) bool {
			alnum := "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
			return n == "" || len(n) > 128 || !strings.Contains(alnum, n[:1]) || strings.Trim(n, alnum+"._-") != ""
		})
		r.wantTree(want...)
		if len(want) < len(good) {
			t.Errorf("only %d names were good", len(want))
		}
		r.c.mu.Lock()
		defer r.c.mu.Unlock()
		for _, n := range r.c.nacks {
			if n.Reason != musterv1.Nack_INVALID || n.Field != "name" {
				t.Errorf("got %v", n)
			}
		}
	})
}

func TestC088Paths(t *testing.T) {
	var all []string
	offerNames(t, func(out string) (offers []*musterv1.ConfigOffer) {
		all = append(roguish(out), naughty(t)...)
		slices.Sort(all)
		all = slices.Compact(all)
		for i, p := range all {
			offers = append(offers, version(fmt.Sprint("n", i), 1, p, at(p)))
		}
		return offers
	}, func(r *configRig) {
		var want []string
		for i, p := range all {
			r.c.mu.Lock()
			s := r.c.statusOf(fmt.Sprint("n", i))
			r.c.mu.Unlock()
			if s.Status != musterv1.ConfigStatus_APPLIED {
				if s.Reason == "" {
					t.Errorf("%q FAILED without a word", p)
				}
				continue
			}
			if p == "" {
				p = fmt.Sprint("n", i) // the default
			}
			want = append(want, p)
		}
		slices.Sort(want)
		got := tree(t, r.root)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("there is %q, want %q", got, want)
		}
		// Odd but harmless ones are taken as they are, and one is not the other.
		for _, p := range []string{"caf\u00e9", "cafe\u0301", "CON", "x ", `..\x`, "$(id)", "..%2fx", "-x"} {
			r.wantFile(p, "", p)
		}
		for _, p := range got {
			if strings.ContainsAny(p, "\n\x00\x1b") {
				t.Errorf("%q was made", p)
			}
		}
	})
}

// What else a coordinator may get wrong is refused with a word, and is no harm.
func TestC088OtherNonsense(t *testing.T) {
	r := newConfigRig(t)
	r.apply(version("a", 1, "one"))
	spec := func(fn func(*musterv1.FileSpec)) *musterv1.ConfigOffer {
		o := version("a", 2, "two")
		fn(o.File)
		return o
	}
	for want, o := range map[string]*musterv1.ConfigOffer{
		"file.mode":               spec(func(f *musterv1.FileSpec) { f.Mode = "4755" }),
		`file.mode "rw`:           spec(func(f *musterv1.FileSpec) { f.Mode = "rw-r--r--" }),
		"file.timeout":            spec(func(f *musterv1.FileSpec) { f.Timeout = durationpb.New(maxConfigTimeout + 1) }),
		"file.timeout -":          spec(func(f *musterv1.FileSpec) { f.Timeout = durationpb.New(-1) }),
		"file.check_cmd: a NUL":   spec(func(f *musterv1.FileSpec) { f.CheckCmd = []string{"a\x00"} }),
		"file.reload_cmd: no":     spec(func(f *musterv1.FileSpec) { f.ReloadCmd = []string{"", "x"} }),
		"file.reload_cmd: 70":     spec(func(f *musterv1.FileSpec) { f.ReloadCmd = []string{strings.Repeat("x", 70_000)} }),
		"content of 4194305":      version("a", 2, strings.Repeat("x", maxConfigSize+1)),
		"not what was offered: 3": func() *musterv1.ConfigOffer { o := version("a", 2, "two"); o.Size = 4; return o }(),
		"with SHA-256":            func() *musterv1.ConfigOffer { o := version("a", 2, "two"); o.Sha256 = "../x"; return o }(),
	} {
		o.Version = int32(1000 + len(want)) // each is a difference
		r.fail(o, 1, want)
	}
	r.wantFile("", "a", "one")
	for field, o := range map[string]*musterv1.ConfigOffer{
		"version": version("a", 0, "zero"),
		"kind":    {Name: "a", Version: 2},
	} {
		r.answered(o)
		r.c.mu.Lock()
		if n := r.c.nacks[len(r.c.nacks)-1]; n.Field != field {
			t.Errorf("want %s: %v", field, n)
		}
		r.c.mu.Unlock()
	}
	for _, m := range []proto.Message{
		&musterv1.ConfigContent{}, &musterv1.ConfigContent{Kind: musterv1.Config_PIPELINE, Name: "a", Version: 1, Data: []byte("x"), Gone: true},
	} { // nobody asked
		r.c.mu.Lock()
		p := r.c.peer
		r.c.mu.Unlock()
		if err := p.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	r.apply(version("a", 2, "two"))
	r.wantTree("a")
}
