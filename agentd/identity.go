package agentd

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// name is the alphabet of the ids of agents and commands and the names of configs.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// nameRule says the same to a person.
const nameRule = "want a letter or digit, then up to 127 of those and . _ -"

// identity returns the agent's id, and whether the folder was never used
// before. The first start stores it, so that a host that is renamed stays the
// same agent, and the results in a journal are never told under another id.
func identity(dir, want string) (id string, first bool, err error) {
	if want != "" && !name.MatchString(want) {
		return "", false, fmt.Errorf("agent id %q: %s", want, nameRule)
	}
	file := filepath.Join(dir, "agent-id")
	b, err := os.ReadFile(file)
	if err == nil {
		id = strings.TrimSpace(string(b))
		switch {
		case want != "" && id != "" && id != want:
			return "", false, fmt.Errorf("data folder %s belongs to agent %q, not %q: use another folder", dir, id, want)
		case name.MatchString(id):
			return id, false, nil
		}
		// The file says nothing: a crash at the first start, or damage.
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("agent id: %w", err)
	}
	first = err != nil
	if id = want; id == "" {
		id = hostID()
	}
	return id, first, writeFile(file, []byte(id+"\n"))
}

// hostID makes an id of the host name.
func hostID() string {
	host, _ := os.Hostname()
	id := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '-'
	}, host)
	id = strings.TrimLeft(id, "._-")
	if id == "" {
		return "agent-" + strings.ToLower(rand.Text()[:12])
	}
	return id[:min(len(id), 128)]
}

// unfinished ends the names of files that are being written.
const unfinished = ".new"

// writeFile writes a file so that it is there whole or not at all.
func writeFile(file string, b []byte) error {
	tmp := file + unfinished
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	return syncDir(filepath.Dir(file))
}
