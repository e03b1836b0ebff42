// Package release tells which version of muster a program is.
package release

import (
	"runtime/debug"
	"strings"
)

// Version is that of this program, as far as its build knows.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return strings.Trim(info.Main.Version, "()")
	}
	return "devel"
}
