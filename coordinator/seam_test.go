package coordinator

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// stamps is a time for a row or an event that does not come from Config.Now.
var stamps = regexp.MustCompile(`timestamppb\.(Now\(\)|New\(time\.Now\(\))`)

// What is stored or shown takes its time from one clock. The first token is made
// before there is a coordinator.
func TestC050OneClockForWhatIsStored(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if file == "token.go" || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for n, line := range strings.Split(string(b), "\n") {
			if stamps.MatchString(line) {
				t.Errorf("%s:%d: %s: take it from Config.Now", file, n+1, strings.TrimSpace(line))
			}
		}
	}
}
