package muster_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const lastNorm = 114

// normRow is one line of the table in docs/norms.md.
type normRow struct {
	norm  string
	where string
	shown string
}

var (
	normLine = regexp.MustCompile(`^\| (N[0-9]+) \| (.*?) \| (.*?) \|$`)
	testName = regexp.MustCompile("`([a-z0-9/-]+)\\.(Test[A-Za-z0-9_]+)`")
	fileName = regexp.MustCompile("`([a-z0-9_/.-]+\\.(?:go|proto|md|py))`")
)

// Every norm has one row in docs/norms.md, which names tests that exist or says
// why the norm does not apply. Files that it names exist, too.
func TestNormsAreShown(t *testing.T) {
	rows := normRows(t)
	wanted := map[string][]string{} // package to tests
	for i := range lastNorm {
		norm := fmt.Sprint("N", i+1)
		at := slices.IndexFunc(rows, func(r normRow) bool { return r.norm == norm })
		if at < 0 {
			t.Errorf("%s has no row", norm)
			continue
		}
		tests := testName.FindAllStringSubmatch(rows[at].shown, -1)
		if len(tests) == 0 && !strings.HasPrefix(rows[at].shown, "Not applied: ") {
			t.Errorf("%s: %q names no test and does not begin with \"Not applied: \"", norm, rows[at].shown)
		}
		if strings.Count(rows[at].shown, "`") != 2*len(tests) {
			t.Errorf("%s: %q names something that is no test", norm, rows[at].shown)
		}
		for _, m := range tests {
			wanted[m[1]] = append(wanted[m[1]], m[2])
		}
		for _, m := range fileName.FindAllStringSubmatch(rows[at].where, -1) {
			if _, err := os.Stat(m[1]); err != nil {
				t.Errorf("%s: %v", norm, err)
			}
		}
	}
	if len(rows) != lastNorm {
		t.Errorf("%d rows, want %d", len(rows), lastNorm)
	}
	have := listTests(t, wanted)
	for pkg, names := range wanted {
		for _, name := range names {
			if !slices.Contains(have[pkg], name) {
				t.Errorf("there is no test %s.%s", pkg, name)
			}
		}
	}
}

func normRows(t *testing.T) (rows []normRow) {
	t.Helper()
	f, err := os.Open("docs/norms.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if m := normLine.FindStringSubmatch(s.Text()); m != nil {
			rows = append(rows, normRow{m[1], m[2], m[3]})
		} else if strings.HasPrefix(s.Text(), "| N") {
			t.Errorf("not a row of three cells: %.80q", s.Text())
		}
	}
	return rows
}

// listTests asks the go command for the tests of packages, the slow ones too.
func listTests(t *testing.T, packages map[string][]string) map[string][]string {
	t.Helper()
	args := []string{"test", "-race", "-tags", "long", "-json", "-list", "^Test"}
	for pkg := range packages {
		args = append(args, "./"+pkg)
	}
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go test -list: %v\n%s", err, out)
	}
	have := map[string][]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var e struct{ Package, Output string }
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if name := strings.TrimSpace(e.Output); strings.HasPrefix(name, "Test") {
			pkg := strings.TrimPrefix(e.Package, module)
			have[pkg] = append(have[pkg], name)
		}
	}
	return have
}
