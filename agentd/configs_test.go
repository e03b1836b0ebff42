package agentd

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/bus/bustest"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// configRig is an agent that takes configs, and a coordinator that offers them.
type configRig struct {
	t     *testing.T
	c     *fakeCoordinator
	agent *running
	net   *bustest.Net
	cfg   Config
	root  string
	seen  string // the same as this process sees it, where that is different
}

func newConfigRig(t *testing.T, prepare ...func(*Agent)) *configRig {
	t.Helper()
	r := &configRig{t: t, net: bustest.NewNet(), root: t.TempDir()}
	r.cfg = Config{Dir: t.TempDir(), ID: "a", Allow: []string{"exec", "hooks"}, ConfigRoot: r.root, StopGrace: time.Second}
	r.c = serve(t, r.net)
	r.start(prepare...)
	return r
}

func (r *configRig) start(prepare ...func(*Agent)) {
	r.t.Helper()
	r.agent = runAgent(r.t, r.net, r.cfg, prepare...)
}

// restart is a new agent on the same folders; it returns its Register.
func (r *configRig) restart(prepare ...func(*Agent)) (reg *musterv1.Register) {
	r.t.Helper()
	r.agent.stop()
	r.c.until(r.t, "the end of the link", func() bool { return r.c.peer == nil })
	r.c.mu.Lock()
	before := len(r.c.registers)
	r.c.mu.Unlock()
	r.start(prepare...)
	r.c.until(r.t, "a Register", func() bool {
		if len(r.c.registers) == before {
			return false
		}
		reg = r.c.registers[before]
		return true
	})
	return reg
}

// version is what is offered: inline, and to a file of the config's name.
func version(name string, v int32, content string, change ...func(*musterv1.ConfigOffer)) *musterv1.ConfigOffer {
	sum := sha256.Sum256([]byte(content))
	o := &musterv1.ConfigOffer{
		Kind: musterv1.Config_PIPELINE, Name: name, Version: v, File: &musterv1.FileSpec{Timeout: durationpb.New(20 * time.Second)},
		Size: uint32(len(content)), Sha256: hex.EncodeToString(sum[:]), Inline: true, Content: []byte(content),
	}
	for _, fn := range change {
		fn(o)
	}
	return o
}

func at(path string) func(*musterv1.ConfigOffer) {
	return func(o *musterv1.ConfigOffer) { o.File.Path = path }
}

func checked(script string, args ...string) func(*musterv1.ConfigOffer) {
	return func(o *musterv1.ConfigOffer) { o.File.CheckCmd = append([]string{"/bin/sh", "-c", script}, args...) }
}

func reloaded(script string) func(*musterv1.ConfigOffer) {
	return func(o *musterv1.ConfigOffer) { o.File.ReloadCmd = []string{"/bin/sh", "-c", script} }
}

func within(d time.Duration) func(*musterv1.ConfigOffer) {
	return func(o *musterv1.ConfigOffer) { o.File.Timeout = durationpb.New(d) }
}

// removal offers that a config shall go.
func removal(name string) *musterv1.ConfigOffer {
	return &musterv1.ConfigOffer{Kind: musterv1.Config_PIPELINE, Name: name, Version: -1}
}

func (r *configRig) offer(offers ...*musterv1.ConfigOffer) {
	r.t.Helper()
	r.c.until(r.t, "an agent", func() bool { return r.c.peer != nil })
	r.c.mu.Lock()
	p := r.c.peer
	r.c.mu.Unlock()
	for _, o := range offers {
		if err := p.Send(o); err != nil {
			r.t.Fatal(err)
		}
	}
}

// fresh offers a version, and returns its status when that is told to be as
// wanted, after the offer.
func (r *configRig) fresh(o *musterv1.ConfigOffer, want musterv1.ConfigStatus_Status) (s *musterv1.ConfigStatus) {
	r.t.Helper()
	r.c.mu.Lock()
	before := len(r.c.statuses)
	r.c.mu.Unlock()
	r.offer(o)
	r.c.until(r.t, fmt.Sprintf("%s %d to be %v", o.Name, o.Version, want), func() bool {
		for _, s = range r.c.statuses[before:] {
			if s.Kind == o.Kind && s.Name == o.Name && s.Version == o.Version && s.Status == want {
				return true
			}
		}
		return false
	})
	return s
}

// wait returns the status of a config when it is, for a version, as wanted.
func (r *configRig) wait(name string, v int32, want musterv1.ConfigStatus_Status) (last *musterv1.ConfigStatus) {
	r.t.Helper()
	r.c.until(r.t, fmt.Sprintf("%s %d to be %v", name, v, want), func() bool {
		last = r.c.statusOf(name)
		return last.GetVersion() == v && last.GetStatus() == want
	})
	return last
}

// statusOf is what was told last of a config. The caller holds the lock.
func (c *fakeCoordinator) statusOf(name string) (last *musterv1.ConfigStatus) {
	for _, s := range c.statuses {
		if s.Name == name {
			last = s
		}
	}
	return last
}

// apply offers a version and waits until it is in place.
func (r *configRig) apply(o *musterv1.ConfigOffer) {
	r.t.Helper()
	s := r.fresh(o, musterv1.ConfigStatus_APPLIED)
	if s.RunningVersion != o.Version || s.Reason != "" {
		r.t.Errorf("got %v", s)
	}
	r.wantFile(o.File.Path, o.Name, string(o.Content))
}

// fail offers a version and waits until it FAILED; then running is in place.
func (r *configRig) fail(o *musterv1.ConfigOffer, running int32, reasons ...string) {
	r.t.Helper()
	s := r.fresh(o, musterv1.ConfigStatus_FAILED)
	for _, reason := range reasons {
		if !strings.Contains(s.Reason, reason) {
			r.t.Errorf("no %q in %v", reason, s)
		}
	}
	if s.RunningVersion != running {
		r.t.Errorf("want %d in place: %v", running, s)
	}
}

func (r *configRig) file(name string) string { return filepath.Join(r.root, name) }

func (r *configRig) wantFile(path, name, content string) {
	r.t.Helper()
	if path == "" {
		path = name
	}
	if got, err := os.ReadFile(filepath.Join(cmp.Or(r.seen, r.root), path)); err != nil || string(got) != content {
		r.t.Errorf("%s holds %.100q, want %.100q (%v)", path, got, content, err)
	}
}

// wantTree checks that the config root holds these files and nothing else.
func (r *configRig) wantTree(want ...string) {
	r.t.Helper()
	if got := strings.Join(tree(r.t, r.root), " "); got != strings.Join(want, " ") {
		r.t.Errorf("the config root holds %s, want %s", got, strings.Join(want, " "))
	}
}

// tree lists all files below a folder, by name.
func tree(t *testing.T, root string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(root, path)
			files = append(files, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// statusIn finds a config in a Register.
func statusIn(reg *musterv1.Register, name string) *musterv1.ConfigStatus {
	for _, s := range reg.Configs {
		if s.Name == name {
			return s
		}
	}
	return nil
}

func (r *configRig) put(name, content string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(r.file(name)), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(r.file(name), []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// history is what was told of a config, in order.
func (r *configRig) history(name string) (all []string) {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	for _, s := range r.c.statuses {
		if s.Name == name {
			all = append(all, fmt.Sprintf("%v %d/%d", s.Status, s.Version, s.RunningVersion))
		}
	}
	return all
}

func TestN72N83N84FeedbackAtOnceAndInTheNextReport(t *testing.T) {
	r := newConfigRig(t)
	reg := r.c.registered(t)
	if reg.Capabilities&6 != 6 {
		t.Errorf("capabilities %b", reg.Capabilities)
	}
	began := time.Now()
	r.apply(version("app.conf", 1, "one\n"))
	r.apply(version("app.conf", 2, "two\n"))
	r.offer(removal("app.conf"))
	r.wait("app.conf", -1, musterv1.ConfigStatus_DELETED)
	if took := time.Since(began); took > 5*time.Second { // the beat is 10 s
		t.Errorf("told after %v", took)
	}
	want := "APPLYING 1/0 APPLIED 1/1 APPLYING 2/1 APPLIED 2/2 APPLYING -1/2 DELETED -1/0"
	if got := strings.Join(r.history("app.conf"), " "); got != want {
		t.Errorf("told %s, want %s", got, want)
	}
	r.wantTree()
	r.apply(version("other", 7, "other"))
	r.fail(version("bad", 1, "bad", checked("exit 1")), 0)
	r.c.cut(t)
	r.c.until(t, "another Register", func() bool { return len(r.c.registers) == 2 })
	reg = r.c.registers[1]
	if s := statusIn(reg, "app.conf"); s.GetStatus() != musterv1.ConfigStatus_DELETED {
		t.Errorf("got %v", reg.Configs)
	}
	if s := statusIn(reg, "other"); s.GetStatus() != musterv1.ConfigStatus_APPLIED || s.RunningVersion != 7 {
		t.Errorf("got %v", reg.Configs)
	}
	if s := statusIn(reg, "bad"); s.GetStatus() != musterv1.ConfigStatus_FAILED || !strings.Contains(s.Reason, "exit code 1") {
		t.Errorf("got %v", reg.Configs)
	}
}

func TestN73N75FetchedAndInline(t *testing.T) {
	r := newConfigRig(t)
	content := strings.Repeat("0123456789abcdef", 40<<10) // 640 KiB: three pieces
	r.c.note(func() {
		r.c.serveFile = func(m *musterv1.FetchConfig) *musterv1.ConfigContent {
			return piece(m, content)
		}
	})
	fetched := version("big", 3, content)
	fetched.Inline, fetched.Content = false, nil
	r.offer(fetched)
	r.wait("big", 3, musterv1.ConfigStatus_APPLIED)
	r.wantFile("big", "big", content)
	r.c.mu.Lock()
	offsets := []uint32{}
	for _, f := range r.c.fetches {
		offsets = append(offsets, f.Offset)
	}
	r.c.mu.Unlock()
	if fmt.Sprint(offsets) != "[0 262144 524288]" {
		t.Errorf("asked at %v", offsets)
	}
	r.apply(version("big", 4, "small"))
}

// piece is an honest answer.
func piece(m *musterv1.FetchConfig, content string) *musterv1.ConfigContent {
	return &musterv1.ConfigContent{
		Kind: m.Kind, Name: m.Name, Version: m.Version, Offset: m.Offset, Size: uint32(len(content)),
		Data: []byte(content[m.Offset:min(int(m.Offset)+maxPiece, len(content))]),
	}
}

func TestFetchesThatComeToNothing(t *testing.T) {
	honest := strings.Repeat("x", 300<<10)
	for name, c := range map[string]struct {
		answer func(*musterv1.ConfigContent)
		want   string
	}{
		"other content": {func(m *musterv1.ConfigContent) { m.Data[0] = 'y' }, "not what was offered"},
		"other size":    {func(m *musterv1.ConfigContent) { m.Size++ }, "content came as"},
		"empty piece":   {func(m *musterv1.ConfigContent) { m.Data = nil }, "content came as"},
		"large piece":   {func(m *musterv1.ConfigContent) { m.Data = []byte(honest[:maxPiece+1]) }, "content came as"},
		"more than all": {func(m *musterv1.ConfigContent) { m.Data = []byte(honest[:maxPiece]) }, "content came as"},
		"not offered":   {func(m *musterv1.ConfigContent) { m.Gone = true }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newConfigRig(t)
			r.apply(version("a", 1, "one"))
			r.c.note(func() {
				r.c.serveFile = func(m *musterv1.FetchConfig) *musterv1.ConfigContent {
					p := piece(m, honest)
					c.answer(p)
					return p
				}
			})
			o := version("a", 2, honest)
			o.Inline, o.Content = false, nil
			if c.want != "" {
				r.fail(o, 1, c.want)
			} else {
				r.offer(o)
				r.wait("a", 2, musterv1.ConfigStatus_APPLYING)
				r.wait("a", 1, musterv1.ConfigStatus_APPLIED)
			}
			r.wantFile("a", "a", "one")
			r.wantTree("a")
		})
	}
}

// An offer whose link breaks before its content is here waits for the next one.
func TestFetchEndsWithItsLink(t *testing.T) {
	r := newConfigRig(t)
	r.apply(version("a", 1, "one"))
	o := version("a", 2, "two")
	o.Inline, o.Content = false, nil
	r.offer(o)
	r.c.until(t, "a fetch", func() bool { return len(r.c.fetches) == 1 })
	r.c.cut(t)
	r.c.until(t, "another Register", func() bool { return len(r.c.registers) == 2 })
	r.c.mu.Lock()
	s := statusIn(r.c.registers[1], "a")
	r.c.mu.Unlock()
	if s.RunningVersion != 1 {
		t.Errorf("got %v", s)
	}
	r.c.note(func() {
		r.c.serveFile = func(m *musterv1.FetchConfig) *musterv1.ConfigContent { return piece(m, "two") }
	})
	r.offer(proto.CloneOf(o))
	r.wait("a", 2, musterv1.ConfigStatus_APPLIED)
	r.wantFile("a", "a", "two")
}
