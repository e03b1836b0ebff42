package coordinator

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// wantFault wants an error of that code; of a field, if one is named.
func wantFault(t *testing.T, err error, code codes.Code, field string) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != code {
		t.Fatalf("got %v, want %s", err, code)
	}
	if field == "" {
		return
	}
	for _, d := range st.Details() {
		if br, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range br.FieldViolations {
				if v.Field == field {
					return
				}
			}
		}
	}
	t.Fatalf("got %v, want it to name %s", err, field)
}

func (r *rig) rows(space store.Space) (n int) {
	r.t.Helper()
	if err := eachRow(r.t.Context(), r.store, space, nil, nil, func(store.KV) error { n++; return nil }); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// C088: what is no name is refused, with the field, before anything is stored.
func TestC088ConfigNamesAreNoPaths(t *testing.T) {
	names := []string{"../x", "..%2fx", "%2e%2e/x", "/etc/x", "a/../../x", "..", ".", "", ".hidden", "-x", strings.Repeat("n", 129), strings.Repeat("n", 256),
		"a ", "a. ", `a\b`, "a\x00b", "a\nb", "n\u0303o", "\u00f1o", "\u540d\u524d", "\u202eabc"}
	blns, err := os.ReadFile(filepath.Join("testdata", "blns.json"))
	if err != nil {
		t.Fatal(err)
	}
	var naughty []string
	if err := json.Unmarshal(blns, &naughty); err != nil {
		t.Fatal(err)
	}
	fleetTest(t, func(t *testing.T, r *rig) {
		taken := 0
		for _, name := range append(names, naughty...) {
			_, err := r.configs().PutConfig(t.Context(), &musterv1.PutConfigRequest{Config: &musterv1.Config{Name: name, Kind: musterv1.Config_PIPELINE}})
			if agentIDForm.MatchString(name) {
				taken++
				if err != nil {
					t.Errorf("%q: %v", name, err)
				}
				continue
			}
			wantFault(t, err, codes.InvalidArgument, "name")
		}
		if n := r.rows(spaceConfig); n > taken {
			t.Errorf("%d rows after %d names that are allowed", n, taken)
		}
		for _, name := range []string{"CON", "x.", "A.b_c-9", strings.Repeat("n", 128)} { // odd, and come back as they are
			r.head(musterv1.Config_PIPELINE, name)
			cfg, err := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: name})
			if err != nil || cfg.Name != name {
				t.Errorf("%q came back as %q, %v", name, cfg.GetName(), err)
			}
		}
	})
}

func TestConfigPathsStayBelowTheAgentsFolder(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.head(musterv1.Config_PIPELINE, "app")
		deep := strings.Repeat("d/", 512) + "f"
		for _, path := range []string{"/etc/passwd", "../x", "a/../b", "a/..", "./a", "a/./b", "a//b", ".muster-x", "a/.muster-x/b", "a/", "a\x00", "a\nb", `a\b`,
			strings.Repeat("e", 256), deep} {
			_, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: "app", File: &musterv1.FileSpec{Path: path}})
			wantFault(t, err, codes.InvalidArgument, "file.path")
		}
		for field, f := range map[string]*musterv1.FileSpec{
			"file.mode":         {Mode: "0888"},
			"file.check_cmd":    {CheckCmd: make([]string, maxArgv+1)},
			"file.check_cmd[0]": {CheckCmd: []string{"", "x"}},
			"file.reload_cmd":   {ReloadCmd: []string{strings.Repeat("x", maxArgvBytes+1)}},
			"file.check_cmd[1]": {CheckCmd: []string{"x", "a\x00b"}},
			"file.timeout":      {Timeout: durationpb.New(11 * time.Minute)},
		} {
			_, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: "app", File: f})
			wantFault(t, err, codes.InvalidArgument, field)
		}
		for _, mode := range []string{"01777", "0o644", "9", "-644", "0888"} {
			_, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: "app", File: &musterv1.FileSpec{Mode: mode}})
			wantFault(t, err, codes.InvalidArgument, "file.mode")
		}
		if n := r.rows(spaceBulk); n > 0 {
			t.Errorf("%d rows of content were stored", n)
		}
	})
}

// C090: the second claim on a path is refused when it is made.
func TestC090OnePathBelongsToOneConfig(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		at := func(config, path string) error {
			_, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: config, Content: []byte("{}"), File: &musterv1.FileSpec{Path: path}})
			return err
		}
		for _, name := range []string{"first", "second", "third", instanceName} {
			r.head(musterv1.Config_PIPELINE, name)
		}
		r.head(musterv1.Config_INSTANCE, "base")
		if err := at("first", "a/b"); err != nil {
			t.Fatal(err)
		}
		err := at("second", "a/b")
		wantFault(t, err, codes.AlreadyExists, "")
		if !strings.Contains(err.Error(), `"first"`) {
			t.Errorf("%v does not name the first", err)
		}
		if err := at("second", "third"); err != nil { // the path that the third would have by default
			t.Fatal(err)
		}
		wantFault(t, at("third", ""), codes.AlreadyExists, "")
		if err := at("first", "a/b"); err != nil { // its own
			t.Error(err)
		}
		if err := at("base", ""); err != nil {
			t.Fatal(err)
		}
		wantFault(t, at(instanceName, ""), codes.AlreadyExists, "") // the merged document's
		r.deleteConfig("first")
		if err := at("third", "a/b"); err != nil {
			t.Errorf("after the first was deleted: %v", err)
		}
	})
}

func TestBindingsNameWhatIsThere(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.head(musterv1.Config_PIPELINE, "app")
		r.version("app", "x")
		r.group("web", "")
		for field, list := range map[string][]*musterv1.Binding{
			"bindings[0].version": {fleetWide(2)},
			"bindings[0].group":   {forGroup("none", 1)},
			"bindings[0].agent":   {forAgent("../a", 1)},
			"bindings[1]":         {fleetWide(1), fleetWide(1)},
			"bindings[2]":         {forGroup("web", 1), forAgent("a", 1), forGroup("web", 1)},
			"bindings[0]":         {{Fleet: true, Agent: "a", Version: 1}},
		} {
			_, err := r.configs().PutConfig(t.Context(), &musterv1.PutConfigRequest{Config: &musterv1.Config{Name: "app", Bindings: list}})
			wantFault(t, err, codes.InvalidArgument, field)
		}
		many := make([]*musterv1.Binding, maxBindings+1)
		for i := range many {
			many[i] = forAgent(fmt.Sprint("a", i), 1)
		}
		_, err := r.configs().PutConfig(t.Context(), &musterv1.PutConfigRequest{Config: &musterv1.Config{Name: "app", Bindings: many}})
		wantFault(t, err, codes.InvalidArgument, "bindings")
		r.bind("app", many[1:]...)
		r.bind("app", forAgent("z", 1), forGroup("web", 1), fleetWide(1))
		cfg, err := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: "app"})
		if err != nil || len(cfg.Bindings) != 3 || !cfg.Bindings[0].Fleet || cfg.Bindings[1].Group != "web" {
			t.Errorf("bindings %v, %v; want the widest scope first", cfg.GetBindings(), err)
		}
		_, err = r.groups().DeleteGroup(t.Context(), &musterv1.DeleteGroupRequest{Name: "web"})
		wantFault(t, err, codes.FailedPrecondition, "")
		_, err = r.configs().PutConfig(t.Context(), &musterv1.PutConfigRequest{Config: &musterv1.Config{Name: "app", Kind: musterv1.Config_INSTANCE}})
		wantFault(t, err, codes.InvalidArgument, "kind")
		_, err = r.configs().PutConfig(t.Context(), &musterv1.PutConfigRequest{Config: &musterv1.Config{Name: "app", Description: "d"}, KeepBindings: true})
		if cfg, err2 := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: "app"}); err != nil || err2 != nil || len(cfg.Bindings) != 3 || cfg.Description != "d" {
			t.Errorf("keeping bindings: %v, %v, %v", cfg, err, err2)
		}
	})
}

// Two writers cannot overwrite each other.
func TestEtagsGuardConfigs(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		put := func(req *musterv1.PutConfigRequest) (*musterv1.Config, error) {
			req.Config = &musterv1.Config{Name: "app", Kind: musterv1.Config_PIPELINE, Description: fmt.Sprint(time.Now())}
			time.Sleep(time.Second)
			return r.configs().PutConfig(t.Context(), req)
		}
		_, err := put(&musterv1.PutConfigRequest{IfMatch: "*"})
		wantFault(t, err, codes.FailedPrecondition, "")
		first, err := put(&musterv1.PutConfigRequest{IfNoneMatch: true})
		if err != nil {
			t.Fatal(err)
		}
		_, err = put(&musterv1.PutConfigRequest{IfNoneMatch: true})
		wantFault(t, err, codes.FailedPrecondition, "")
		dry, err := put(&musterv1.PutConfigRequest{IfMatch: first.Etag, DryRun: true})
		if err != nil || dry.Etag == first.Etag {
			t.Errorf("dry run: %v, %v", dry, err)
		}
		second, err := put(&musterv1.PutConfigRequest{IfMatch: first.Etag})
		if err != nil {
			t.Fatal(err)
		}
		_, err = put(&musterv1.PutConfigRequest{IfMatch: first.Etag})
		wantFault(t, err, codes.FailedPrecondition, "")
		if got, err := r.configs().GetConfig(t.Context(), &musterv1.GetConfigRequest{Name: "app"}); err != nil || got.Etag != second.Etag {
			t.Errorf("etag %v, %v; want that of the last change", got.GetEtag(), err)
		}
		_, err = r.configs().DeleteConfig(t.Context(), &musterv1.DeleteConfigRequest{Name: "app", IfMatch: first.Etag})
		wantFault(t, err, codes.FailedPrecondition, "")
		if _, err = r.configs().DeleteConfig(t.Context(), &musterv1.DeleteConfigRequest{Name: "app", IfMatch: second.Etag}); err != nil {
			t.Error(err)
		}
		_, err = r.configs().DeleteConfig(t.Context(), &musterv1.DeleteConfigRequest{Name: "app"})
		wantFault(t, err, codes.NotFound, "")
	})
}

func TestPreviewSaysWhoGetsChangesAndLoses(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		for _, id := range []string{"a", "b", "c", "d"} {
			r.taker(id).come()
		}
		r.group("ab", "", "a", "b")
		r.head(musterv1.Config_PIPELINE, "app")
		r.version("app", "1")
		r.version("app", "2")
		r.bind("app", forGroup("ab", 1))
		resp, err := r.configs().PreviewConfig(t.Context(), &musterv1.PreviewConfigRequest{PageSize: 2,
			Config: &musterv1.Config{Name: "app", Bindings: []*musterv1.Binding{forAgent("b", 2), forAgent("c", 1)}}})
		if err != nil {
			t.Fatal(err)
		}
		if resp.Total != 2 || resp.Fleet != 4 || resp.Changed != 3 || len(resp.Changes) != 2 || resp.NextPageToken == "" {
			t.Fatalf("preview %v", resp)
		}
		if c := resp.Changes; c[0].AgentId != "a" || c[0].FromVersion != 1 || c[0].ToVersion != 0 || c[1].FromVersion != 1 || c[1].ToVersion != 2 {
			t.Errorf("changes %v", c)
		}
		resp, err = r.configs().PreviewConfig(t.Context(), &musterv1.PreviewConfigRequest{PageSize: 2, PageToken: resp.NextPageToken,
			Config: &musterv1.Config{Name: "app", Bindings: []*musterv1.Binding{forAgent("b", 2), forAgent("c", 1)}}})
		if err != nil || len(resp.Changes) != 1 || resp.Changes[0].AgentId != "c" || resp.NextPageToken != "" {
			t.Errorf("second page %v, %v", resp, err)
		}
	})
}
