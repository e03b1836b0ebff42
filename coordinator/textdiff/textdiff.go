// Package textdiff compares contents line by line, as diff -u does. The
// coordinator compares versions of a config with it, `muster apply` a folder with
// a version.
package textdiff

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/pmezard/go-difflib/difflib"
)

// Limits of what is compared: its cost grows with the product of the lines.
const (
	MaxBytes = 512 << 10
	maxLines = 10_000
)

const context = 3 // lines around a change

// Comparable reports whether content is text of a size that can be compared.
func Comparable(content []byte) bool {
	return len(content) <= MaxBytes && utf8.Valid(content) && bytes.IndexByte(content, 0) < 0 && bytes.Count(content, []byte("\n")) <= maxLines
}

// Unified makes a unified diff of two contents that are Comparable.
func Unified(nameA string, a []byte, nameB string, b []byte) (string, error) {
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: linesOf(a), B: linesOf(b), FromFile: nameA, ToFile: nameB, Context: context,
	})
}

// linesOf cuts content into lines; a last one without an end says so, as in diff.
func linesOf(content []byte) (lines []string) {
	for line := range strings.Lines(string(content)) {
		if !strings.HasSuffix(line, "\n") {
			line += "\n\\ No newline at end of file\n"
		}
		lines = append(lines, line)
	}
	return lines
}
