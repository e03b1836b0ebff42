package history_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/cmd/internal/history"
	"github.com/musterhq/muster/coordinator"
	"github.com/musterhq/muster/coordinator/store/boltstore"
)

func TestMakeGivesASoundStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	if err := history.Make(t.Context(), path, history.Size{Agents: 50, Commands: 300, Targets: 3, Output: 2048}); err != nil {
		t.Fatal(err)
	}
	r, err := boltstore.Check(t.Context(), path, coordinator.CheckRow)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for _, s := range r.Spaces {
		rows[string(s.Name)] = s.Rows
	}
	if !r.Sound() || rows["fleet"] != 50 || rows["history"] != 300*4 || rows["bulk"] != 300*4 {
		t.Errorf("rows %v, faults %q", rows, r.Faults)
	}
	db, err := boltstore.Open(path, boltstore.Options{Existing: true}, coordinator.Spaces...)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var out bytes.Buffer
	err = coordinator.Export(t.Context(), db, &out, func(err error) { t.Error(err) })
	if err != nil || strings.Count(out.String(), "\n") != 300*4 || strings.Count(out.String(), `"state":"DONE"`) != 300 {
		t.Errorf("%v, %d lines", err, strings.Count(out.String(), "\n"))
	}
}
