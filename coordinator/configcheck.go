package coordinator

import (
	"fmt"
	"path"
	"strings"
	"time"
	"unicode"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// Limits of configs.
const (
	maxConfigs      = 5000
	maxGone         = 10_000 // deleted configs that are remembered; then the oldest is forgotten
	maxBindings     = 1000   // of one config
	maxContent      = 4 << 20
	maxNote         = 1024
	maxPath         = 1024
	maxPathElement  = 255
	hiddenPrefix    = ".muster-" // of files that an agent has beside those of configs
	maxArgv         = 64
	maxArgvBytes    = 8 << 10
	maxCheckTime    = 10 * time.Minute
	maxVersion      = 1<<31 - 1
	keptVersions    = 100        // the newest of a config; older ones stay while they are bound or in a rollout
	instanceName    = "instance" // of the merged document, on the wire
	maxHeldRow      = 200 << 10
	shortReason     = 64
	maxHeldConfigs  = 1024 // that an agent may tell of
	maxInlineConfig = 64 << 10
	maxPiece        = 256 << 10 // of content, in the store and on the wire
)

// configName checks a name, which never becomes a path by itself.
func (f *faults) configName(field, name string) {
	if !agentIDForm.MatchString(name) {
		f.add(field, "%.150q is not a config name: 1 to 128 letters, digits, '.', '_', '-', the first a letter or digit", name)
	}
}

// bindings checks what can be said of bindings without looking anything up.
func (f *faults) bindings(list []*musterv1.Binding) {
	if len(list) > maxBindings {
		f.add("bindings", "%d bindings, at most %d; bind to a group instead", len(list), maxBindings)
		return
	}
	seen := map[string]int{}
	for i, b := range list {
		at := fmt.Sprintf("bindings[%d]", i)
		scope, ok := scopeOf(b)
		switch {
		case !ok:
			f.add(at, "exactly one of fleet, group and agent is needed")
		case b.Agent != "" && !agentIDForm.MatchString(b.Agent):
			f.add(at+".agent", "%.150q is not an agent id", b.Agent)
		case b.Version < 1:
			f.add(at+".version", "version %d, want one that there is, from 1 on", b.Version)
		}
		if first, twice := seen[scope]; ok && twice {
			f.add(at, "bindings[%d] is for the same scope", first)
		}
		seen[scope] = i
	}
}

// scopeOf names the scope of a binding; false: it has none, or several.
func scopeOf(b *musterv1.Binding) (string, bool) {
	n := 0
	for _, set := range []bool{b.GetFleet(), b.GetGroup() != "", b.GetAgent() != ""} {
		if set {
			n++
		}
	}
	return fmt.Sprintf("%v/%s/%s", b.GetFleet(), b.GetGroup(), b.GetAgent()), n == 1
}

// fileSpec checks where a file goes and who is asked about it.
func (f *faults) fileSpec(s *musterv1.FileSpec) {
	if s == nil {
		return
	}
	if s.Path != "" {
		if why := badPath(s.Path); why != "" {
			f.add("file.path", "%.150q: %s", s.Path, why)
		}
	}
	if s.Mode != "" && !octalMode(s.Mode) {
		f.add("file.mode", "%.20q is not a mode: want octal digits from 0000 to 0777", s.Mode)
	}
	f.argv("file.check_cmd", s.CheckCmd)
	f.argv("file.reload_cmd", s.ReloadCmd)
	f.duration("file.timeout", s.Timeout, maxCheckTime)
}

// badPath says what is wrong with a path below an agent's config folder.
func badPath(p string) string {
	switch {
	case len(p) > maxPath:
		return fmt.Sprintf("%d bytes, at most %d", len(p), maxPath)
	case strings.HasPrefix(p, "/"):
		return "a path below the agent's config folder is needed"
	case strings.ContainsFunc(p, unicode.IsControl):
		return "control characters are not allowed"
	case strings.Contains(p, `\`):
		return "a backslash is not allowed"
	}
	for e := range strings.SplitSeq(p, "/") {
		switch {
		case e == "" || e == ".":
			return fmt.Sprintf("write it as %q", path.Clean(p))
		case e == "..":
			return `".." is not allowed`
		case len(e) > maxPathElement:
			return fmt.Sprintf("an element of %d bytes, at most %d", len(e), maxPathElement)
		case strings.HasPrefix(e, hiddenPrefix):
			return "names that begin with " + hiddenPrefix + " are the agents'"
		}
	}
	return ""
}

func octalMode(m string) bool {
	if len(m) < 3 || len(m) > 4 || len(m) == 4 && m[0] != '0' {
		return false
	}
	return strings.Trim(m, "01234567") == ""
}

func (f *faults) argv(field string, argv []string) {
	size := 0
	for i, a := range argv {
		size += len(a)
		if strings.ContainsRune(a, 0) {
			f.add(fmt.Sprintf("%s[%d]", field, i), "a NUL cannot be given to a program")
			return
		}
	}
	switch {
	case len(argv) > maxArgv:
		f.add(field, "%d arguments, at most %d", len(argv), maxArgv)
	case size > maxArgvBytes:
		f.add(field, "%d bytes, at most %d", size, maxArgvBytes)
	case len(argv) > 0 && argv[0] == "":
		f.add(field+"[0]", "a program is needed")
	}
}
