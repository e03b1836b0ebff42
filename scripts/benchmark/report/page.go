package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const head = `# Benchmarks

Written by ` + "`scripts/bench`" + `. Server and load share the machine: compare the ratios, not the rates.
`

// Replace writes a section of the page at path; the others stay.
func Replace(path, section, text string) error {
	old, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		old, err = []byte(head), nil
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(replace(string(old), section, text)), 0o644)
}

func replace(page, section, text string) string {
	begin, end := fmt.Sprintf("<!-- begin %s -->\n", section), fmt.Sprintf("<!-- end %s -->\n", section)
	text = begin + strings.TrimSpace(text) + "\n" + end
	before, rest, found := strings.Cut(page, begin)
	if !found {
		return strings.TrimRight(page, "\n") + "\n\n" + text
	}
	_, after, _ := strings.Cut(rest, end)
	return before + text + after
}
