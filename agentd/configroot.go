package agentd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// hooksAllowed is what Config.Allow says for check_cmd and reload_cmd.
const hooksAllowed = "hooks"

// defaultRoot is the config root below the data folder.
const defaultRoot = "configs"

// configRoot finds the folder below which configs are put. The agent's own files
// must not be among what a config can replace.
func configRoot(dir, root string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("data folder %s: %w", dir, err)
	}
	if root == "" {
		root = filepath.Join(dir, defaultRoot)
		if err := os.MkdirAll(root, 0o700); err != nil {
			return "", fmt.Errorf("config root: %w", err)
		}
		return root, nil
	}
	given := root
	if root, err = filepath.Abs(root); err != nil {
		return "", fmt.Errorf("config root %s: %w", given, err)
	}
	if info, err := os.Stat(root); err != nil {
		return "", fmt.Errorf("config root: %w", err)
	} else if !info.IsDir() {
		return "", fmt.Errorf("config root %s is no folder", given)
	}
	if holds(root, dir) {
		return "", fmt.Errorf("config root %s holds the data folder %s: use another one, or move that", given, dir)
	}
	return root, nil
}

// holds says whether a folder is another one, or holds it, whatever links lead there.
func holds(outer, inner string) bool {
	for _, p := range []*string{&outer, &inner} {
		if real, err := filepath.EvalSymlinks(*p); err == nil {
			*p = real
		}
	}
	rel, err := filepath.Rel(outer, inner)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
