package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/faulty"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// collected is the receiving end of ReadConfigContent.
type collected struct {
	grpc.ServerStream
	ctx  context.Context
	data []byte
	most int // bytes of a part
}

func (c *collected) Context() context.Context     { return c.ctx }
func (c *collected) SendHeader(metadata.MD) error { return nil }
func (c *collected) Send(m *musterv1.ConfigContentPart) error {
	c.data = append(c.data, m.Data...)
	c.most = max(c.most, len(m.Data))
	return nil
}

func (r *rig) content(name string, version int32) []byte {
	r.t.Helper()
	out := &collected{ctx: r.t.Context()}
	if err := r.configs().ReadConfigContent(&musterv1.ReadConfigContentRequest{Config: name, Version: version}, out); err != nil {
		r.t.Fatal(err)
	}
	if out.most > maxPiece {
		r.t.Errorf("a part of %d bytes", out.most)
	}
	return out.data
}

// C093: content is bytes, to the store, back, and to an agent.
func TestC093ContentIsBytes(t *testing.T) {
	line := strings.Repeat("x", 3<<20)
	contents := map[string]string{
		"empty": "", "no-newline": "a", "crlf": "a\r\nb\r\n", "nul": "a\x00b", "latin-1": "caf\xe9\n", "bom": "\xef\xbb\xbfx", "placeholder": "{{.x}} {} %s ${y}\n",
		"inline": strings.Repeat("i", maxInlineConfig), "just-larger": strings.Repeat("l", maxInlineConfig+1), "one-piece": strings.Repeat("p", maxPiece),
		"piece-and-one": strings.Repeat("p", maxPiece+1), "line": line, "4-mib": strings.Repeat("0123456789abcdef", maxContent/16),
	}
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a").come()
		for name, content := range contents {
			r.pipeline(name, content)
		}
		settle()
		for name, content := range contents {
			if got := r.content(name, 1); string(got) != content {
				t.Errorf("%s: %d bytes came back, want %d", name, len(got), len(content))
			}
			a.wantFile(file(name), content)
			r.wantConfig(name, "a", applied, 1, 1)
		}
		_, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: "line", Content: make([]byte, maxContent+1)})
		wantFault(t, err, codes.InvalidArgument, "content")
	})
}

// C091: of two writers with the same base one is refused.
func TestC091BaseVersionGuardsWriters(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.head(musterv1.Config_PIPELINE, "app")
		base := r.version("app", "0")
		var wg sync.WaitGroup
		var aborted atomic.Int32
		for i := range 5 {
			wg.Go(func() {
				_, err := r.configs().CreateConfigVersion(r.t.Context(), &musterv1.CreateConfigVersionRequest{Config: "app", Content: fmt.Append(nil, i), BaseVersion: base})
				if status.Code(err) == codes.Aborted {
					aborted.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := aborted.Load(); n != 4 {
			t.Errorf("%d writers of 5 were refused, want 4", n)
		}
		cfg, err := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: "app"})
		if err != nil || cfg.LatestVersion != 2 {
			t.Errorf("latest %d, %v", cfg.GetLatestVersion(), err)
		}
	})
}

func TestSameVersionIsNotMadeAgain(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.head(musterv1.Config_PIPELINE, "app")
		create := func(content, mode string) int32 {
			v, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: "app", Content: []byte(content),
				File: &musterv1.FileSpec{Mode: mode}, UnlessSame: true})
			if err != nil {
				t.Fatal(err)
			}
			return v.Version
		}
		for i, x := range []struct {
			content, mode string
			want          int32
		}{{"a", "", 1}, {"a", "", 1}, {"a", "0644", 2}, {"b", "0644", 3}, {"b", "0644", 3}, {"a", "", 4}} {
			if n := create(x.content, x.mode); n != x.want {
				t.Errorf("step %d: version %d, want %d", i, n, x.want)
			}
		}
		before := r.rows(spaceConfig)
		v, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: "app", Content: []byte("z"), DryRun: true})
		if err != nil || v.Version != 5 || r.rows(spaceConfig) != before {
			t.Errorf("dry run: %v, %v", v, err)
		}
	})
}

// A version is judged before its config is there, so that a bad one leaves none.
func TestVersionOfNoConfigYetIsJudged(t *testing.T) {
	const pipeline, instance = musterv1.Config_PIPELINE, musterv1.Config_INSTANCE
	fleetTest(t, func(t *testing.T, r *rig) {
		r.pipeline("app", "a")
		before := r.rows(spaceConfig)
		try := func(name, content, path string, kind musterv1.Config_Kind, dryRun bool) error {
			_, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{
				Config: name, Content: []byte(content), File: &musterv1.FileSpec{Path: path}, Kind: kind, DryRun: dryRun})
			return err
		}
		if err := try("new", "{}", "", instance, true); err != nil {
			t.Error(err)
		}
		wantFault(t, try("new", "no object", "", instance, true), codes.InvalidArgument, "content")
		wantFault(t, try("new", "x", "app", pipeline, true), codes.AlreadyExists, "")
		wantFault(t, try("new", "x", "", 0, true), codes.NotFound, "")
		wantFault(t, try("new", "x", "", pipeline, false), codes.InvalidArgument, "kind")
		wantFault(t, try("new", "x", "", 7, true), codes.InvalidArgument, "kind")
		wantFault(t, try("app", "{}", "", instance, true), codes.InvalidArgument, "kind")
		if r.rows(spaceConfig) != before {
			t.Error("something was written")
		}
	})
}

func TestVersionsAreListedInPages(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.head(musterv1.Config_PIPELINE, "app")
		for i := range 7 {
			r.version("app", fmt.Sprint(i))
		}
		list := func(ascending bool) (numbers []int32) {
			req := &musterv1.ListConfigVersionsRequest{Config: "app", PageSize: 3, Ascending: ascending}
			for {
				resp, err := r.configs().ListConfigVersions(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				for _, v := range resp.Versions {
					numbers = append(numbers, v.Version)
				}
				if req.PageToken = resp.NextPageToken; req.PageToken == "" {
					return numbers
				}
			}
		}
		if got := list(true); !slices.Equal(got, []int32{1, 2, 3, 4, 5, 6, 7}) {
			t.Errorf("ascending %v", got)
		}
		if got := list(false); !slices.Equal(got, []int32{7, 6, 5, 4, 3, 2, 1}) {
			t.Errorf("descending %v", got)
		}
		_, err := r.configs().GetConfigVersion(t.Context(), &musterv1.GetConfigVersionRequest{Config: "app", Version: 8})
		wantFault(t, err, codes.NotFound, "")
	})
}

func TestOldVersionsAreRemovedUnlessBound(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.head(musterv1.Config_PIPELINE, "app")
		r.version("app", "1")
		r.version("app", strings.Repeat("2", maxPiece+1))
		r.version("app", "3")
		r.bind("app", forAgent("x", 3))
		for i := 4; i <= keptVersions+4; i++ {
			r.version("app", fmt.Sprint(i))
		}
		synctest.Wait()
		got := r.c.configs.catalog.versionsOf("app")
		if len(got) != keptVersions+1 || got[0] != 3 || got[1] != 5 {
			t.Errorf("kept %v", got)
		}
		if n := r.rows(spaceBulk); n != keptVersions+1 {
			t.Errorf("%d pieces of content are left, want %d", n, keptVersions+1)
		}
		if string(r.content("app", 3)) != "3" {
			t.Error("the bound one is damaged")
		}
	})
}

func TestDiffOfVersions(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.head(musterv1.Config_PIPELINE, "app")
		r.version("app", "a\nb\nc\n")
		r.version("app", "a\nB\nc\n")
		r.version("app", "a\nB\nc")
		r.version("app", "bin\x00")
		_, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: "app", Content: []byte("a\nb\nc\n"),
			File: &musterv1.FileSpec{Mode: "0644", CheckCmd: []string{"check", "{}"}}})
		if err != nil {
			t.Fatal(err)
		}
		diff := func(from, to int32) *musterv1.DiffConfigResponse {
			resp, err := r.configs().DiffConfig(t.Context(), &musterv1.DiffConfigRequest{Config: "app", From: from, To: to})
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		if d := diff(1, 2); d.Text != "--- app@1\n+++ app@2\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n" || d.Binary || d.Equal {
			t.Errorf("diff %v", d)
		}
		if d := diff(2, 3); !strings.Contains(d.Text, "-c\n+c\n\\ No newline at end of file\n") {
			t.Errorf("diff %v", d)
		}
		if d := diff(1, 4); !d.Binary || d.Text != "" || d.Equal {
			t.Errorf("diff %v", d)
		}
		if d := diff(1, 1); !d.Equal || d.Text != "" {
			t.Errorf("diff %v", d)
		}
		if d := diff(1, 5); d.Equal || d.Text != "" || !slices.Equal(d.FileChanges, []string{"mode: (default) -> 0644", `check_cmd: (none) -> ["check" "{}"]`}) {
			t.Errorf("diff %v", d)
		}
	})
}

// A version is there whole or not at all, whatever the store does.
func TestVersionIsWholeWhenTheStoreFails(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), maxContent/16)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var commits, refuseAt atomic.Int32
		var forget atomic.Bool
		plan := func(call faulty.Call) faulty.Fault {
			if call.Method != faulty.Commit || refuseAt.Load() == 0 || call.Batch.Ops[0].Space == spaceFleet {
				return faulty.Fault{}
			}
			switch n := commits.Add(1); {
			case n != refuseAt.Load():
				return faulty.Fault{}
			case forget.Load():
				return faulty.Fault{Forget: true}
			default:
				return faulty.Fault{Refuse: errors.New("disk full")}
			}
		}
		r.store = faulty.New(r.store, plan)
		r.start()
		r.head(musterv1.Config_PIPELINE, "app")
		made := int32(0)
		for at := int32(1); at <= 6; at++ {
			commits.Store(0)
			refuseAt.Store(at)
			_, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: "app", Content: content})
			if status.Code(toStatus(err)) != codes.Unavailable {
				t.Fatalf("commit %d refused: %v", at, err)
			}
			refuseAt.Store(0)
			synctest.Wait() // what was staged is removed
			if n := r.rows(spaceBulk); n != int(made)*16 {
				t.Fatalf("commit %d refused: %d pieces are left, want %d", at, n, made*16)
			}
			if made = r.version("app", string(content)); made != at {
				t.Fatalf("version %d, want %d", made, at)
			}
			if got := r.content("app", made); !bytes.Equal(got, content) {
				t.Fatalf("version %d is damaged", made)
			}
		}
		forget.Store(true) // the last commit is made, and not known
		commits.Store(0)
		refuseAt.Store(6)
		_, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: "app", Content: content})
		if status.Code(toStatus(err)) != codes.Unavailable {
			t.Fatalf("forgotten commit: %v", err)
		}
		refuseAt.Store(0)
		synctest.Wait()
		if got := r.content("app", made+1); !bytes.Equal(got, content) {
			t.Error("the version of a forgotten commit is damaged")
		}
		if n := r.version("app", "next"); n != made+2 {
			t.Errorf("next version %d, want %d", n, made+2)
		}
		r.stop()
		r.store.Close()
	})
}

// Content that was staged when the coordinator died is removed when it starts.
func TestStagedContentIsSweptAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.head(musterv1.Config_PIPELINE, "app")
		r.version("app", "one")
		r.stop()
		ops := contentOps(configRef{"app", 2}, bytes.Repeat([]byte("x"), 2*maxPiece))
		for _, o := range append(ops, store.Op{Space: spaceConfig, Key: stagedKey("app", 2)}) {
			if _, err := r.store.Commit(t.Context(), store.Batch{Ops: []store.Op{o}}); err != nil {
				t.Fatal(err)
			}
		}
		r.start()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := r.rows(spaceBulk); n != 1 {
			t.Errorf("%d pieces, want 1", n)
		}
		if n := r.version("app", "two"); n != 2 || string(r.content("app", 2)) != "two" {
			t.Errorf("version %d", n)
		}
		r.stop()
		r.store.Close()
	})
}
