package coordinator

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pmezard/go-difflib/difflib"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Limits of what is compared line by line: its cost grows with the product of
// the lines.
const (
	maxDiffBytes = 512 << 10
	maxDiffLines = 10_000
	maxDiffText  = 2 << 20
	diffContext  = 3
)

// DiffConfig compares two versions of a config.
func (s *configService) DiffConfig(ctx context.Context, req *musterv1.DiffConfigRequest) (*musterv1.DiffConfigResponse, error) {
	k := s.c.configs
	from, err := k.version(ctx, configRef{req.Config, req.From})
	if err != nil {
		return nil, err
	}
	to, err := k.version(ctx, configRef{req.Config, req.To})
	if err != nil {
		return nil, err
	}
	resp := &musterv1.DiffConfigResponse{Equal: sameVersion(from, to), FileChanges: fileChanges(from.File, to.File)}
	if from.Sha256 == to.Sha256 {
		return resp, nil
	}
	if from.Size > maxDiffBytes || to.Size > maxDiffBytes {
		resp.Binary = true
		return resp, nil
	}
	a, err := k.content(ctx, from)
	if err != nil {
		return nil, err
	}
	b, err := k.content(ctx, to)
	if err != nil {
		return nil, err
	}
	if !diffable(a) || !diffable(b) {
		resp.Binary = true
		return resp, nil
	}
	k.diffing.Lock() // one at a time: it is nothing but computing
	defer k.diffing.Unlock()
	resp.Text, err = unified(fmt.Sprintf("%s@%d", req.Config, req.From), string(a), fmt.Sprintf("%s@%d", req.Config, req.To), string(b))
	if len(resp.Text) > maxDiffText {
		resp.Text, resp.Binary = "", true
	}
	return resp, err
}

// diffable reports whether content is text of a size that can be compared.
func diffable(b []byte) bool {
	return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 && bytes.Count(b, []byte("\n")) <= maxDiffLines
}

// unified makes a unified diff as diff -u does.
func unified(nameA, a, nameB, b string) (string, error) {
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: diffLines(a), B: diffLines(b), FromFile: nameA, ToFile: nameB, Context: diffContext,
	})
}

// diffLines cuts text into lines; a last one without an end says so, as in diff.
func diffLines(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "\n") {
			line += "\n\\ No newline at end of file\n"
		}
		lines = append(lines, line)
	}
	return lines
}

// fileChanges says what differs between two file specs, for a person.
func fileChanges(a, b *musterv1.FileSpec) (changes []string) {
	for _, x := range []struct{ field, from, to string }{
		{"path", a.GetPath(), b.GetPath()},
		{"mode", a.GetMode(), b.GetMode()},
		{"check_cmd", argvText(a.GetCheckCmd()), argvText(b.GetCheckCmd())},
		{"reload_cmd", argvText(a.GetReloadCmd()), argvText(b.GetReloadCmd())},
		{"timeout", timeText(a), timeText(b)},
	} {
		if x.from != x.to {
			changes = append(changes, fmt.Sprintf("%s: %s -> %s", x.field, cmp.Or(x.from, "(default)"), cmp.Or(x.to, "(default)")))
		}
	}
	return changes
}

func argvText(argv []string) string {
	if len(argv) == 0 {
		return "(none)"
	}
	return fmt.Sprintf("%q", argv)
}

func timeText(f *musterv1.FileSpec) string {
	if f.GetTimeout() == nil {
		return ""
	}
	return f.Timeout.AsDuration().String()
}
