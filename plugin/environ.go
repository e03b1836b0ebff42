package plugin

import (
	"os"
	"strings"
)

// ours are variables that belong to the agent's own process: a program that
// inherited them would talk to the agent's service manager in its name.
var ours = map[string]bool{
	"NOTIFY_SOCKET": true, "WATCHDOG_PID": true, "WATCHDOG_USEC": true,
	"LISTEN_PID": true, "LISTEN_FDS": true, "LISTEN_FDNAMES": true,
}

// Reserved reports whether a variable may not be set by a command: names that
// begin with MUSTER_ are the contract's.
func Reserved(name string) bool { return strings.HasPrefix(name, "MUSTER_") }

// Environ is the environment of this process as programs get it, without what
// is muster's own (tokens and keys are among it), followed by extra. Of two
// entries with one name the later wins.
func Environ(extra ...string) []string {
	var all []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name != "" && !Reserved(name) && !ours[name] {
			all = append(all, kv)
		}
	}
	all = append(all, extra...)

	last := make(map[string]int, len(all))
	for i, kv := range all {
		name, _, _ := strings.Cut(kv, "=")
		last[name] = i
	}
	env := all[:0]
	for i, kv := range all {
		if name, _, _ := strings.Cut(kv, "="); last[name] == i {
			env = append(env, kv)
		}
	}
	return env
}
