package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/boltstore"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func openStore(t *testing.T, dir string) *boltstore.Store {
	t.Helper()
	db, err := boltstore.Open(filepath.Join(dir, storeFile), boltstore.Options{}, coordinator.Spaces...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func offline(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = run(t.Context(), append([]string{"muster"}, args...), &out, &errOut)
	return code, out.String(), errOut.String()
}

// dataFolder is one of a coordinator that has ended.
func dataFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	db := openStore(t, dir)
	if err := coordinator.EnsureAdminToken(context.Background(), db, filepath.Join(dir, tokenFile)); err != nil {
		t.Fatal(err)
	}
	db.Close()
	return dir
}

func TestStoreCommandsOfASoundFile(t *testing.T) {
	dir := dataFolder(t)
	code, out, errOut := offline(t, "store", "check", "--data", dir)
	if code != exitOK || !strings.HasSuffix(out, "\nsound\n") || !strings.Contains(out, "fleet") {
		t.Errorf("check: exit %d\n%s%s", code, out, errOut)
	}
	code, out, _ = offline(t, "store", "check", "--data", dir, "-o", "json")
	if code != exitOK || !strings.Contains(out, `"fault_count": 0`) {
		t.Errorf("check: exit %d\n%s", code, out)
	}
	code, out, errOut = offline(t, "store", "compact", "--data", dir)
	if code != exitOK || strings.Count(out, "\n") != 2 {
		t.Errorf("compact: exit %d\n%s%s", code, out, errOut)
	}
	code, _, errOut = offline(t, "store", "compact", "--data", dir)
	if code != exitError || !strings.Contains(errOut, storeFile+".old") {
		t.Errorf("compact again: exit %d\n%s", code, errOut)
	}
	code, out, errOut = offline(t, "store", "compact", "--data", dir, "--discard-old")
	if code != exitOK || strings.Count(out, "\n") != 1 {
		t.Errorf("compact again: exit %d\n%s%s", code, out, errOut)
	}
	code, out, errOut = offline(t, "store", "export", "--data", dir)
	if code != exitOK || out+errOut != "" {
		t.Errorf("export: exit %d\n%s%s", code, out, errOut)
	}
}

func TestStoreCommandsNeedTheFileForThemselves(t *testing.T) {
	dir := t.TempDir()
	empty := t.TempDir()
	openStore(t, dir)
	for _, name := range []string{"check", "compact", "export"} {
		code, out, errOut := offline(t, "store", name, "--data", dir)
		if code != exitError || out != "" || !strings.Contains(errOut, "coordinator running") || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s beside a coordinator: exit %d\n%s%s", name, code, out, errOut)
		}
		code, out, errOut = offline(t, "store", name, "--data", empty)
		if code != exitError || out != "" || !strings.Contains(errOut, filepath.Join(empty, storeFile)) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s without a file: exit %d\n%s%s", name, code, out, errOut)
		}
		if code, _, errOut = offline(t, "store", name, "x"); code != exitError || !strings.Contains(errOut, `"x"`) {
			t.Errorf("%s with an argument: exit %d\n%s", name, code, errOut)
		}
	}
	if files, err := os.ReadDir(empty); err != nil || len(files) > 0 {
		t.Errorf("made %v, %v", files, err)
	}
}

func TestC109StoreCommandsOfADamagedFile(t *testing.T) {
	dir := dataFolder(t)
	path := filepath.Join(dir, storeFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b = b[:len(b)/3]
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errOut := offline(t, "store", "check", "--data", dir)
	if code != exitError || !strings.Contains(out, "\nfault: ") || !strings.Contains(errOut, "put a copy") {
		t.Errorf("check: exit %d\n%s%s", code, out, errOut)
	}
	for _, name := range []string{"compact", "export"} {
		code, out, errOut := offline(t, "store", name, "--data", dir)
		if code != exitError || out != "" || !strings.Contains(errOut, path) {
			t.Errorf("%s: exit %d\n%s%s", name, code, out, errOut)
		}
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, b) {
		t.Errorf("the damaged file was changed: %v", err)
	}
}

func TestStoreExportTellsWhatItLeavesOut(t *testing.T) {
	const good, bad = "01M8NHX3F10HS0QFF2JDMNC8QJ", "01M8NHX3F10HS0QFF2JDMNC8QK"
	dir := dataFolder(t)
	db := openStore(t, dir)
	ended := coordinator.Ended{
		Command: &musterv1.Command{Id: good, State: musterv1.Command_DONE, Input: []byte(`{"argv":["true"]}`)},
		Targets: []*musterv1.Target{{CommandId: good, AgentId: "a1", State: musterv1.Target_SUCCEEDED}},
	}
	_, err := db.Commit(t.Context(), store.Batch{Ops: append(ended.Ops(), store.Op{Space: "history", Key: []byte("cmd/" + bad), Value: []byte{0xff}})})
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
	code, out, errOut := offline(t, "store", "export", "--data", dir)
	const want = `{"command":{"id":"01M8NHX3F10HS0QFF2JDMNC8QJ","input":{"argv":["true"]},"state":"DONE"}}
{"target":{"agent_id":"a1","command_id":"01M8NHX3F10HS0QFF2JDMNC8QJ","state":"SUCCEEDED"}}
`
	if code != exitError || out != want || !strings.Contains(errOut, "left out") || !strings.Contains(errOut, bad) {
		t.Errorf("exit %d\n%s%s", code, out, errOut)
	}
	if code, out, _ = offline(t, "store", "check", "--data", dir); code != exitError || !strings.Contains(out, bad) {
		t.Errorf("check: exit %d\n%s", code, out)
	}
}
