package agentd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// configKey names a config on this agent.
type configKey struct {
	kind musterv1.Config_Kind
	name string
}

// file is the key as part of a file name.
func (k configKey) file() string { return strings.ToLower(k.kind.String()) + "-" + k.name }

func (k configKey) String() string { return strings.ToLower(k.kind.String()) + " config " + k.name }

// configRecord is what is remembered of one config over restarts. It is written
// before each step that it announces.
type configRecord struct {
	Kind musterv1.Config_Kind `json:"kind"`
	Name string               `json:"name"`

	Placed *content `json:"placed,omitempty"` // what is in place; nil: nothing of ours
	Stale  bool     `json:"stale,omitempty"`  // the program was not told of what is in place
	Trying *attempt `json:"trying,omitempty"` // under way
	Left   string   `json:"left,omitempty"`   // the path that it had before

	// How the last attempt ended.
	Status  musterv1.ConfigStatus_Status `json:"status"`
	Version int32                        `json:"version"`
	Reason  string                       `json:"reason,omitempty"`
	Last    *content                     `json:"last,omitempty"`  // of it, when it FAILED
	Again   bool                         `json:"again,omitempty"` // it is tried again by itself
	Tries   int                          `json:"tries,omitempty"` // of the same content, in the last hour
	Tried   time.Time                    `json:"tried,omitzero"`
}

// content is one version of a config, but for its bytes.
type content struct {
	Version int32         `json:"version"`
	Sha256  string        `json:"sha256"`
	Size    int           `json:"size"`
	Path    string        `json:"path"`
	Mode    fs.FileMode   `json:"mode"`
	Check   []string      `json:"check,omitempty"`
	Reload  []string      `json:"reload,omitempty"`
	Timeout time.Duration `json:"timeout"`
}

// same reports whether there is no difference between two.
func (c *content) same(d *content) bool {
	if c == nil || d == nil {
		return c == d
	}
	a, _ := json.Marshal(c)
	b, _ := json.Marshal(d)
	return string(a) == string(b)
}

// attempt is a version that is being applied.
type attempt struct {
	content
	Mark   string `json:"mark"`             // of its programs
	Placed bool   `json:"placed,omitempty"` // files are being moved
	Fresh  bool   `json:"fresh,omitempty"`  // nothing was at the target
	From   string `json:"from,omitempty"`   // another path, which is to be left
}

func (r *configRecord) key() configKey { return configKey{r.Kind, r.Name} }

// paths are all that the config has a claim on.
func (r *configRecord) paths() (paths []string) {
	if r.Placed != nil {
		paths = append(paths, r.Placed.Path)
	}
	if r.Trying != nil {
		paths = append(paths, r.Trying.Path, r.Trying.From)
	}
	return paths
}

// succeed notes that a version is in place.
func (r *configRecord) succeed(c *content) {
	if r.Trying != nil {
		r.Left = r.Trying.From
	}
	r.Placed, r.Stale, r.Trying = c, false, nil
	r.Status, r.Version, r.Reason = musterv1.ConfigStatus_APPLIED, c.Version, ""
	r.Last, r.Again = nil, false
}

// fail notes that an attempt came to nothing.
func (r *configRecord) fail(c *content, why string, again bool) {
	r.Trying = nil
	r.Status, r.Version, r.Reason = musterv1.ConfigStatus_FAILED, c.Version, reason(why)
	r.Last, r.Again = c, again
}

// configStore is the folder of the records: of each config one file, and one
// with the content that is to be applied as long as it is not.
type configStore struct {
	dir string
	log *slog.Logger
}

func openConfigStore(dir string, log *slog.Logger) (configStore, error) {
	s := configStore{filepath.Join(dir, "held-configs"), log}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return s, fmt.Errorf("records of configs: %w", err)
	}
	return s, nil
}

// load reads all records. One that makes no sense is set aside: its config is as
// one that was never heard of.
func (s configStore) load() ([]*configRecord, error) {
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("records of configs: %w", err)
	}
	var all []*configRecord
	wanted := map[string]bool{}
	for _, f := range files {
		if filepath.Ext(f.Name()) != ".json" {
			continue
		}
		r, err := s.read(f.Name())
		if err != nil {
			s.log.Error("record of a config damaged, set aside", "file", filepath.Join(s.dir, f.Name()), "err", err)
			_ = os.Rename(filepath.Join(s.dir, f.Name()), filepath.Join(s.dir, f.Name()+".damaged"))
			continue
		}
		all = append(all, r)
		wanted[r.key().file()+".content"] = r.Trying != nil || r.Again
	}
	for _, f := range files {
		if ext := filepath.Ext(f.Name()); ext == unfinished || ext == ".content" && !wanted[f.Name()] {
			_ = os.Remove(filepath.Join(s.dir, f.Name()))
		}
	}
	return all, nil
}

func (s configStore) read(file string) (*configRecord, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, file))
	if err != nil {
		return nil, err
	}
	r := &configRecord{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	if err := checkKey(r.key()); err != nil || r.key().file()+".json" != file {
		return nil, errors.New("it is of another config")
	}
	for _, p := range r.paths() {
		if p != "" && checkPath(p) != nil {
			return nil, fmt.Errorf("path %q", p)
		}
	}
	return r, nil
}

// save makes a record durable.
func (s configStore) save(r *configRecord) error {
	b, err := json.Marshal(r)
	if err == nil {
		err = s.write(r.key().file()+".json", b)
	}
	if err != nil {
		return fmt.Errorf("record could not be stored: %w", err)
	}
	return nil
}

// keep makes the content that is to be applied durable.
func (s configStore) keep(k configKey, b []byte) error { return s.write(k.file()+".content", b) }

func (s configStore) kept(k configKey) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.dir, k.file()+".content"))
}

func (s configStore) dropContent(k configKey) {
	_ = os.Remove(filepath.Join(s.dir, k.file()+".content"))
}

// forget removes all of a config.
func (s configStore) forget(k configKey) error {
	s.dropContent(k)
	if err := os.Remove(filepath.Join(s.dir, k.file()+".json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDir(s.dir)
}

func (s configStore) write(file string, b []byte) error {
	return writeFile(filepath.Join(s.dir, file), b)
}
