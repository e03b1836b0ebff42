package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// writeFolder makes a folder of files by path.
func writeFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFolderIsRead(t *testing.T) {
	dir := writeFolder(t, map[string]string{
		"groups.yaml": "- name: web\n  where: tags[\"role\"] == \"web\"\n  agents: [b, a, b]\n",
		"configs/nginx.yaml": "kind: pipeline\nbindings: {fleet: true, groups: [web], agents: [a1]}\ncontent_file: nginx.conf\n" +
			"file: {path: n/x.conf, mode: 0640, check_cmd: [nginx, -t, \"{}\"], timeout: 90s}\nrollout: {canary: 1, batch: 10%, max_failures: 0}\nnote: why\n",
		"configs/nginx.conf": "a\r\n\x00",
		"configs/base.yaml":  "kind: instance\ncontent: |\n  {\"a\": 1}\n",
		"configs/README":     "not a config",
	})
	f, err := readFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.groups) != 1 || strings.Join(f.groups[0].Agents, ",") != "a,b" || f.groups[0].Where != `tags["role"] == "web"` {
		t.Errorf("groups %+v", f.groups)
	}
	if len(f.configs) != 2 || f.configs[0].name != "base" || f.configs[0].Kind != "INSTANCE" || string(f.configs[0].content) != "{\"a\": 1}\n" {
		t.Fatalf("configs %+v", f.configs)
	}
	n := f.configs[1]
	if n.Kind != "PIPELINE" || string(n.content) != "a\r\n\x00" || n.File.Mode != "0640" || len(n.File.CheckCmd) != 3 || n.File.Timeout != "90s" || n.Note != "why" {
		t.Errorf("nginx %+v", n)
	}
	if got := bindingList(n.Bindings.at(2)); got != "fleet version 2, group web version 2, agent a1 version 2" {
		t.Errorf("bindings %s", got)
	}
	if got := n.Rollout.String(); got != "canary 1, batch 10%, max failures 0" {
		t.Errorf("plan %s", got)
	}
}

func TestBadFoldersAreRefused(t *testing.T) {
	const good = "content: x\n"
	for _, tc := range []struct {
		files map[string]string
		says  string
	}{
		{nil, "nothing to apply"},
		{map[string]string{"configs/README": "x"}, "nothing to apply"},
		{map[string]string{"groups.yaml": "web: true"}, "groups.yaml: line 1: this is a mapping; want a list, each of it a mapping of name, description, where, agents"},
		{map[string]string{"groups.yaml": "- name: web\n  were: x"}, "groups.yaml: line 2: field were is not known; known are name, description, where, agents"},
		{map[string]string{"groups.yaml": "- name: web\n- name: web"}, `group "web" is there twice`},
		{map[string]string{"groups.yaml": "- name: web\n  name: db"}, "already defined"},
		{map[string]string{"groups.yaml": "- name: web\n---\n- name: db"}, "one document"},
		{map[string]string{"groups.yaml": "- {"}, "groups.yaml: yaml: "},
		{map[string]string{"configs/a.yml": good}, "want the ending .yaml"},
		{map[string]string{"configs/a.yaml": "content: x\ncontent_file: y"}, "content_file: FILE"},
		{map[string]string{"configs/a.yaml": "kind: pipeline"}, "content_file: FILE"},
		{map[string]string{"configs/a.yaml": "content_file: missing.conf"}, "missing.conf: no such file"},
		{map[string]string{"configs/a.yaml": good + "bindings: {groups: [a, a]}"}, "group a is bound twice"},
		{map[string]string{"configs/a.yaml": good, "configs/b.yaml": good + "file: {path: a}"}, `configs "a" and "b" have the same path, a`},
		{map[string]string{"configs/a.yaml": "kind: instance\n" + good, "configs/instance.yaml": good}, "have the same path, instance"},
		{map[string]string{"configs/a.yaml": good + "bindings: [fleet]"}, "configs/a.yaml: line 2: this is a list; want a mapping of fleet, groups, agents"},
		{map[string]string{"configs/a.yaml": good + "keep_on_halt: maybe"}, "line 2: this is a text `maybe`; want true or false"},
		{map[string]string{"configs/a.yaml": good + "bindings: {groups: web}"}, "line 2: this is a text `web`; want a list, each of it a text"},
		{map[string]string{"configs/a.yaml": good + "rollout: {canry: 1}"}, "line 2: field canry is not known; known are canary, batch"},
		{map[string]string{"configs/a.yaml": good + "name: b"}, "line 2: field name is not known; known are kind, description, bindings, file, content_file, content, note, rollout, keep_on_halt"},
	} {
		if _, err := readFolder(writeFolder(t, tc.files)); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%v: %v, want %q", tc.files, err, tc.says)
		}
	}
	if _, err := readFolder(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a folder that is not there")
	}
}

// A folder may come from somebody else: it does not bring what is outside of it,
// and nothing in it keeps the command busy for ever.
func TestFolderIsReadByItselfOnly(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("content: secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := func(path string) error { return syscall.Mkfifo(path, 0o600) }
	link := func(to string) func(string) error { return func(path string) error { return os.Symlink(to, path) } }
	for _, tc := range []struct {
		yaml string // of configs/a.yaml; "": none
		at   string
		put  func(path string) error
		says string
	}{
		{"content_file: ../../" + filepath.Base(filepath.Dir(secret)) + "/secret", "", nil, "escapes"},
		{"content_file: ../../../../../../../../.." + secret, "", nil, "escapes"},
		{"content_file: c", "configs/c", link(secret), "escapes"},
		{"content_file: c", "configs/c", link("/dev/zero"), "escapes"},
		{"content_file: c", "configs/c", pipe, "configs/c is no regular file"},
		{"content_file: .", "", nil, "no regular file"},
		{"", "configs/a.yaml", link(secret), "escapes"},
		{"", "configs/a.yaml", pipe, "configs/a.yaml is no regular file"},
		{"", "groups.yaml", pipe, "groups.yaml is no regular file"},
		{"", "groups.yaml", link("/dev/zero"), "escapes"},
		{"", "configs", link(filepath.Dir(secret)), "escapes"},
		{"content: " + strings.Repeat("x", maxYAML), "", nil, "is over"},
	} {
		files := map[string]string{"README": "x"}
		if tc.yaml != "" {
			files["configs/a.yaml"] = tc.yaml
		}
		dir := writeFolder(t, files)
		if tc.put != nil {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, tc.at)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := tc.put(filepath.Join(dir, tc.at)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := readFolder(dir); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%.60s, %s: %v, want %q", tc.yaml, tc.at, err, tc.says)
		}
	}

	dir := writeFolder(t, map[string]string{"shared/c": "inside", "configs/a.yaml": "content_file: ../shared/c", "configs/b.yaml": "content_file: d"})
	if err := os.Symlink("../shared/c", filepath.Join(dir, "configs/d")); err != nil {
		t.Fatal(err)
	}
	f, err := readFolder(dir)
	if err != nil || len(f.configs) != 2 || string(f.configs[0].content) != "inside" || string(f.configs[1].content) != "inside" {
		t.Errorf("what leads about inside is read: %+v, %v", f.configs, err)
	}
}
