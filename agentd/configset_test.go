package agentd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// stamps are what changes when a file is written or replaced.
func (r *configRig) stamps(names ...string) (all string) {
	r.t.Helper()
	for _, n := range names {
		info, err := os.Stat(r.file(n))
		if err != nil {
			r.t.Fatal(err)
		}
		s := stampOf(info)
		all += fmt.Sprintln(n, s.ino, s.mtime)
	}
	return all
}

func TestN28N29C089UnchangedOnesStayUntouched(t *testing.T) {
	r := newConfigRig(t)
	log := filepath.Join(t.TempDir(), "reloads")
	offers := map[string]*musterv1.ConfigOffer{}
	set := func(name string, v int32, content string) {
		offers[name] = version(name, v, content, reloaded("echo "+name+" >>"+log))
	}
	probes := int32(0)
	offerAll := func() {
		for _, o := range offers {
			r.offer(proto.CloneOf(o))
		}
		probes++
		r.apply(version("probe", probes, "x")) // its turn is after theirs, if they had one
		for _, o := range offers {
			r.wait(o.Name, o.Version, musterv1.ConfigStatus_APPLIED)
		}
	}
	var others []string
	for i := range 10 {
		set(fmt.Sprint("c", i), 1, "one")
		if i > 1 {
			others = append(others, fmt.Sprint("c", i))
		}
	}
	offerAll()
	if n := len(lines(log)); n != 10 {
		t.Fatalf("%d reloads", n)
	}
	before := r.stamps(others...)

	set("c0", 2, "two")
	set("c10", 1, "one")
	delete(offers, "c1")
	r.offer(removal("c1"))
	offerAll()
	r.wait("c1", -1, musterv1.ConfigStatus_DELETED)
	want := 13
	for name, again := range map[string]func(){
		"the same offers":      offerAll,
		"another link":         func() { r.c.cut(t); r.c.until(t, "a link", func() bool { return r.c.peer != nil }); offerAll() },
		"a restart":            func() { r.restart(); offerAll() },
		"another deletion":     func() { r.offer(removal("c1")); offerAll() },
		"a coordinator's wipe": func() { r.restart() }, // which offers nothing, and so takes nothing away
	} {
		again()
		if got := lines(log); len(got) != want {
			t.Errorf("after %s: reloaded %v", name, got[10:])
		}
		if after := r.stamps(others...); after != before {
			t.Errorf("after %s: were\n%sand are\n%s", name, before, after)
		}
	}
}

func TestC090DeleteRenameAndOneTargetForTwo(t *testing.T) {
	r := newConfigRig(t)
	r.quick().restart()
	r.apply(version("a", 1, "of a", at("shared.conf")))
	r.fail(version("b", 1, "of b", at("shared.conf")), 0, "shared.conf", "pipeline config a")
	for _, p := range []string{"./shared.conf", "x/../shared.conf", ".//shared.conf"} {
		r.fail(version("c", 1, "of c", at(p)), 0, "file.path")
	}
	r.wantFile("shared.conf", "", "of a")
	inst := version("shared.conf", 1, `{"of":"instance"}`)
	inst.Kind = musterv1.Config_INSTANCE
	r.fail(inst, 0, "pipeline config a")

	none := removal("shared.conf")
	none.Kind = inst.Kind
	for _, o := range []*musterv1.ConfigOffer{removal("b"), removal("c"), none} {
		r.fresh(o, musterv1.ConfigStatus_DELETED)
	}
	r.wantFile("shared.conf", "", "of a") // the loser takes nothing with it

	// A rename: the new name waits until the old one is gone.
	r.fail(version("renamed", 1, "of a", at("shared.conf")), 0, "pipeline config a")
	r.offer(removal("a"))
	r.wait("a", -1, musterv1.ConfigStatus_DELETED)
	r.wait("renamed", 1, musterv1.ConfigStatus_APPLIED)
	r.wantTree("shared.conf")
	r.apply(version("a", 1, "another life")) // the name again, with other content
	r.wantTree("a", "shared.conf")

	// Deleted while the agent was away, and offered on its return.
	r.restart()
	r.offer(removal("renamed"))
	r.wait("renamed", -1, musterv1.ConfigStatus_DELETED)
	r.wantTree("a")
	if s := statusIn(r.restart(), "renamed"); s != nil {
		t.Errorf("after a restart there is %v", s)
	}
}

func TestC091QuickVersions(t *testing.T) {
	r := newConfigRig(t)
	log := filepath.Join(t.TempDir(), "checks")
	slow := checked("echo $MUSTER_CONFIG_VERSION >>" + log + "; sleep 0.5")
	for v := range int32(20) {
		r.offer(version("a", v+1, fmt.Sprint("content ", v+1), slow))
		<-time.After(20 * time.Millisecond)
	}
	r.wait("a", 20, musterv1.ConfigStatus_APPLIED)
	r.wantFile("a", "", "content 20")
	if got := lines(log); len(got) > 10 || got[len(got)-1] != "20" {
		t.Errorf("checked %v", got)
	}
	for _, h := range r.history("a") {
		var v, running int
		var status string
		if _, err := fmt.Sscanf(h, "%s %d/%d", &status, &v, &running); err != nil {
			t.Fatal(err)
		}
		if status == "APPLIED" && v != running || status == "FAILED" {
			t.Errorf("told %s", h)
		}
	}
	r.apply(version("a", 5, "content 5", slow)) // going back is a change like any other
}

// N77: a version is another one, whether it is more or less; N76: all but 0 and -1.
func TestN76N77AnyDifferenceIsAnUpdate(t *testing.T) {
	r := newConfigRig(t)
	for i, v := range []int32{7, 3, -2, 1 << 30, -1 << 31, 8} {
		r.apply(version("a", v, fmt.Sprint("content ", i)))
	}
	// A coordinator that lost its memory counts from 1 again, with other content.
	r.apply(version("a", 8, "another 8"))
	// The same bytes to another place are a difference too.
	r.apply(version("a", 8, "another 8", at("b")))
	r.wantTree("b")
}

func TestN74InstanceConfig(t *testing.T) {
	r := newConfigRig(t)
	doc := version("instance", 1, `{"level":"info"}`)
	doc.Kind = musterv1.Config_INSTANCE
	r.apply(doc)
	r.apply(version("pipeline", 1, "x"))
	r.apply(version("instance", 1, "a PIPELINE config of that name", at("other")))
	r.wantFile("instance", "", `{"level":"info"}`)
	reg := r.restart()
	if len(reg.Configs) != 3 || reg.Configs[0].Kind != musterv1.Config_INSTANCE {
		t.Errorf("got %v", reg.Configs)
	}
}

// The coordinator dies when the file is in place and before it heard of it.
func TestC092StatusNotHeard(t *testing.T) {
	r := newConfigRig(t)
	r.apply(version("b", 1, "one"))
	in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
	r.offer(version("a", 1, "new", reloaded("touch "+in+waitFile(out))))
	until(t, "the reload", func() bool { _, err := os.Stat(in); return err == nil })
	r.c.note(func() { r.c.deaf = true })
	r.c.cut(t)
	touch(t, out)
	r.wantEventually("a", "new")
	r.c.note(func() { r.c.deaf = false })
	var reg *musterv1.Register
	r.c.until(t, "a Register that tells it", func() bool {
		reg = r.c.registers[len(r.c.registers)-1]
		return r.c.peer != nil && (statusIn(reg, "a").GetStatus() == musterv1.ConfigStatus_APPLIED || r.c.statusOf("a").GetStatus() == musterv1.ConfigStatus_APPLIED)
	})
	if s := statusIn(reg, "b"); s.GetRunningVersion() != 1 {
		t.Errorf("got %v", reg.Configs)
	}
	r.wantTree("a", "b") // and who offers nothing takes nothing away
}

func (r *configRig) wantEventually(name, content string) {
	r.t.Helper()
	until(r.t, name+" to be "+content, func() bool { b, _ := os.ReadFile(r.file(name)); return string(b) == content })
}

func TestC093ContentIsBytes(t *testing.T) {
	r := newConfigRig(t)
	for i, content := range []string{
		"", "no newline", "a\r\nb\r\n", "\x00\x00", "\xe9t\xe9", "{}", "${HOME} {{.Name}} %s", "\xef\xbb\xbfBOM",
		strings.Repeat("x", maxConfigSize), string(bytes.Repeat([]byte{0xff, 0, '\n'}, 1<<20)),
	} {
		r.apply(version("inline", int32(i+1), content))
		o := version("fetched", int32(i+1), content)
		o.Inline, o.Content = false, nil
		r.c.note(func() {
			r.c.serveFile = func(m *musterv1.FetchConfig) *musterv1.ConfigContent { return piece(m, content) }
		})
		r.offer(o)
		r.wait("fetched", int32(i+1), musterv1.ConfigStatus_APPLIED)
		r.wantFile("fetched", "", content)
	}
}

// Somebody edits or removes a file on the host: the agent does not claim that
// its version runs, and takes the next offer of it.
func TestChangedOnTheHost(t *testing.T) {
	r := newConfigRig(t)
	one, two := version("a", 1, "one"), version("b", 1, "one")
	r.apply(one)
	r.apply(two)
	r.put("a", "edited")
	if err := os.Remove(r.file("b")); err != nil {
		t.Fatal(err)
	}
	reg := r.restart()
	for name, why := range map[string]string{"a": "changed on the host", "b": "removed on the host"} {
		s := statusIn(reg, name)
		if s.GetStatus() != musterv1.ConfigStatus_UNSET || s.Version != 1 || s.RunningVersion != 0 || !strings.Contains(s.Reason, why) {
			t.Errorf("got %v", s)
		}
	}
	r.wantFile("a", "", "edited")
	for _, o := range []*musterv1.ConfigOffer{one, two} {
		r.apply(o)
	}
}

// A record that makes no sense keeps no agent from starting.
func TestDamagedConfigRecords(t *testing.T) {
	r := newConfigRig(t)
	r.apply(version("good", 1, "one"))
	r.apply(version("bad", 1, "one"))
	r.agent.stop()
	records := filepath.Join(r.cfg.Dir, "held-configs")
	for name, content := range map[string]string{
		"pipeline-bad.json":     `{"kind":`,
		"pipeline-other.json":   `{"kind":1,"name":"good"}`,
		"pipeline-outside.json": `{"kind":1,"name":"outside","placed":{"version":1,"path":"../x"}}`,
		"pipeline-x.content":    "left over",
		"y.json.new":            "left over",
	} {
		if err := os.WriteFile(filepath.Join(records, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reg := r.restart()
	if len(reg.Configs) != 1 || statusIn(reg, "good").GetRunningVersion() != 1 {
		t.Errorf("got %v", reg.Configs)
	}
	r.apply(version("bad", 1, "one"))
	want := "pipeline-bad.json pipeline-bad.json.damaged pipeline-good.json pipeline-other.json.damaged pipeline-outside.json.damaged"
	if got := strings.Join(tree(t, records), " "); got != want {
		t.Errorf("there is %s", got)
	}
}
