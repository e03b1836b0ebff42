// Package arguments lets a command line be written in the order in which people
// think of it: flags may follow positional arguments, and "--" is kept for the
// command to see.
package arguments

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// Arrange moves the flags of the subcommand that args name in front of its
// positional arguments and puts a "--" between them. The first "--" of the
// user, and what follows, is left as it is. args[0] is the program.
func Arrange(commands []*cli.Command, args []string) []string {
	leaf, depth := find(commands, args)
	if leaf == nil || len(leaf.Subcommands) > 0 {
		return args
	}
	var flags, positional []string
	rest := args[depth:]
	for len(rest) > 0 && rest[0] != "--" {
		arg := rest[0]
		rest = rest[1:]
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			positional = append(positional, arg)
			continue
		}
		flags = append(flags, arg)
		if takesValue(leaf, arg) && len(rest) > 0 && rest[0] != "--" {
			flags = append(flags, rest[0])
			rest = rest[1:]
		}
	}
	return slices.Concat(args[:depth], flags, []string{"--"}, positional, rest)
}

// find follows the names at the start of args down to a command.
func find(commands []*cli.Command, args []string) (leaf *cli.Command, depth int) {
	for depth = 1; depth < len(args); depth++ {
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(args[depth]) })
		if i < 0 {
			break
		}
		leaf, commands = commands[i], commands[i].Subcommands
	}
	return leaf, depth
}

func takesValue(c *cli.Command, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	if strings.Contains(name, "=") {
		return false
	}
	i := slices.IndexFunc(c.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 {
		return false
	}
	f, ok := c.Flags[i].(cli.DocGenerationFlag)
	return ok && f.TakesValue()
}

// Split cuts positional arguments at the first "--"; found says whether there
// was one.
func Split(args []string) (before, after []string, found bool) {
	if i := slices.Index(args, "--"); i >= 0 {
		return args[:i], args[i+1:], true
	}
	return args, nil, false
}

// Refuse is an OnUsageError that returns a wrong flag as an error, without the
// page of help that hides it.
func Refuse(_ *cli.Context, err error, _ bool) error { return err }

// RefuseIn makes Refuse hold for commands and all below them.
func RefuseIn(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = Refuse
		RefuseIn(c.Subcommands)
	}
}

// Unclear lists the flags, of commands and all below them, whose help tells more
// than one default.
func Unclear(path string, flags []cli.Flag, commands []*cli.Command) (unclear []string) {
	for _, f := range flags {
		if n := strings.Count(f.String(), "default:"); n > 1 {
			unclear = append(unclear, path+" "+f.String())
		}
	}
	for _, c := range commands {
		unclear = append(unclear, Unclear(path+" "+c.Name, c.Flags, c.Subcommands)...)
	}
	return unclear
}
