package agentd

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Limits of what configs this agent takes.
const (
	maxConfigs       = 1024
	maxConfigSize    = 4 << 20
	maxConfigPath    = 1024
	maxConfigCommand = 64 << 10
	maxConfigTimeout = 10 * time.Minute
	configTimeout    = 30 * time.Second

	deletedVersion = -1
)

// offer is a config that is to be applied.
type offer struct {
	content
	bad    error         // why it is not taken
	link   Link          // that it came on; nil: the content is on disk
	bytes  []byte        // of the content
	here   bool          // bytes are all of it
	again  bool          // it FAILED, and is tried again by itself
	reload bool          // nothing is to be applied: the program is to be told what is in place
	newer  chan struct{} // closed when a newer one came
}

// newOffer understands what a coordinator offers.
func newOffer(link Link, m *musterv1.ConfigOffer) *offer {
	o := &offer{link: link, newer: make(chan struct{})}
	o.Version = m.Version
	if o.Version == deletedVersion {
		return o
	}
	o.Sha256, o.Size = m.Sha256, int(m.Size)
	if o.bad = o.read(m.Name, m.File); o.bad != nil {
		return o
	}
	if o.Size > maxConfigSize || len(m.Content) > maxConfigSize {
		o.bad = fmt.Errorf("content of %d bytes, at most %d", max(o.Size, len(m.Content)), maxConfigSize)
		return o
	}
	if m.Inline || o.Size == 0 {
		o.bytes, o.here = m.Content, true
	}
	return o
}

// retry is an offer of content that is on disk.
func retry(c *content) *offer {
	return &offer{content: *c, again: true, newer: make(chan struct{})}
}

// fetchedOff says that a newer offer came on another link than that on which
// this one's content may still be asked for, in vain.
func (o *offer) fetchedOff(newer *offer) bool {
	return o.link != nil && !o.here && o.link != newer.link && o.Version != deletedVersion
}

// supersede says that a newer offer is there. The applier's lock is held.
func (o *offer) supersede() {
	select {
	case <-o.newer:
	default:
		close(o.newer)
	}
}

// verify checks that content is what was offered.
func (o *offer) verify(b []byte) error {
	sum := sha256.Sum256(b)
	if len(b) != o.Size || hex.EncodeToString(sum[:]) != o.Sha256 {
		return fmt.Errorf("the content is not what was offered: %d bytes with SHA-256 %x, want %d with %.64s", len(b), sum, o.Size, o.Sha256)
	}
	return nil
}

// checkKey refuses names that no config has, whatever a coordinator says: they
// become parts of file names.
func checkKey(k configKey) error {
	switch {
	case k.kind != musterv1.Config_PIPELINE && k.kind != musterv1.Config_INSTANCE:
		return &bus.NackError{Reason: musterv1.Nack_INVALID, Field: "kind", Detail: "want PIPELINE or INSTANCE"}
	case !name.MatchString(k.name):
		return &bus.NackError{Reason: musterv1.Nack_INVALID, Field: "name", Detail: nameRule}
	}
	return nil
}

// read takes what a FileSpec says.
func (o *offer) read(config string, spec *musterv1.FileSpec) error {
	o.Path = cmp.Or(spec.GetPath(), config)
	if err := checkPath(o.Path); err != nil {
		return err
	}
	mode, err := strconv.ParseUint(cmp.Or(spec.GetMode(), "0600"), 8, 32)
	if err != nil || mode > 0o777 {
		return fmt.Errorf("file.mode %.20q: want octal, up to 0777", spec.GetMode())
	}
	o.Mode = fs.FileMode(mode)
	o.Timeout = configTimeout
	if t := spec.GetTimeout(); t != nil {
		if o.Timeout = t.AsDuration(); t.CheckValid() != nil || o.Timeout < 0 || o.Timeout > maxConfigTimeout {
			return fmt.Errorf("file.timeout %v: want at most %v", t.AsDuration(), maxConfigTimeout)
		}
		o.Timeout = cmp.Or(o.Timeout, configTimeout)
	}
	o.Check, o.Reload = spec.GetCheckCmd(), spec.GetReloadCmd()
	if err := checkArgv("file.check_cmd", o.Check); err != nil {
		return err
	}
	return checkArgv("file.reload_cmd", o.Reload)
}

func checkArgv(field string, argv []string) error {
	size := 0
	for _, arg := range argv {
		if strings.IndexByte(arg, 0) >= 0 {
			return fmt.Errorf("%s: a NUL byte cannot be passed to a program", field)
		}
		size += len(arg) + 1
	}
	switch {
	case size > maxConfigCommand:
		return fmt.Errorf("%s: %d bytes, at most %d", field, size, maxConfigCommand)
	case len(argv) > 0 && argv[0] == "":
		return fmt.Errorf("%s: no program named", field)
	}
	return nil
}

// checkPath wants the way from the config root to a file, in its plain form: two
// paths are one file only if they are equal.
func checkPath(p string) error {
	bad := func(why string) error { return fmt.Errorf("file.path %.200q: %s", p, why) }
	switch {
	case p == "":
		return bad("it is empty")
	case len(p) > maxConfigPath:
		return bad(fmt.Sprintf("%d bytes, at most %d", len(p), maxConfigPath))
	case !utf8.ValidString(p):
		return bad("it is not UTF-8")
	case strings.ContainsFunc(p, unicode.IsControl):
		return bad("it has control characters")
	case path.IsAbs(p):
		return bad("it is to be relative to the config root")
	case path.Clean(p) != p || p == "." || p == ".." || strings.HasPrefix(p, "../"):
		return bad("it is to have no empty part, no . and no ..")
	}
	for part := range strings.SplitSeq(p, "/") {
		if len(part) > 255 {
			return bad("a part of it has more than 255 bytes")
		}
		if strings.HasPrefix(part, hiddenPrefix) {
			return bad("names that begin with " + hiddenPrefix + " are the agent's")
		}
	}
	return nil
}

var errFull = errors.New("this agent holds as many configs as it can: " + strconv.Itoa(maxConfigs))
