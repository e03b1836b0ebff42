package coordinator

import (
	"cmp"
	"context"
	"fmt"

	"github.com/musterhq/muster/coordinator/textdiff"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// maxDiffText bounds what an answer holds of a diff.
const maxDiffText = 2 << 20

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
	if from.Size > textdiff.MaxBytes || to.Size > textdiff.MaxBytes {
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
	if !textdiff.Comparable(a) || !textdiff.Comparable(b) {
		resp.Binary = true
		return resp, nil
	}
	k.diffing.Lock() // one at a time: it is nothing but computing
	defer k.diffing.Unlock()
	resp.Text, err = textdiff.Unified(fmt.Sprintf("%s@%d", req.Config, req.From), a, fmt.Sprintf("%s@%d", req.Config, req.To), b)
	if len(resp.Text) > maxDiffText {
		resp.Text, resp.Binary = "", true
	}
	return resp, err
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
