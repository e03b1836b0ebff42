package main

import (
	"encoding/json"
	"fmt"

	"github.com/urfave/cli/v2"
)

// asking is the Action of a subcommand that takes least to most arguments, asks
// a server and shows what it says.
func asking(least, most int, do func(c *cli.Context, cl *client, asJSON bool) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := checkArguments(c, least, most); err != nil {
			return err
		}
		asJSON, err := wantsJSON(c)
		if err != nil {
			return err
		}
		cl, err := newClient(c)
		if err != nil {
			return err
		}
		return do(c, cl, asJSON)
	}
}

func checkArguments(c *cli.Context, least, most int) error {
	switch n := c.NArg(); {
	case n >= least && n <= most:
		return nil
	case most == 0:
		return usagef("%s takes no arguments, got %q", c.Command.Name, c.Args().First())
	default:
		return usagef("want %s, got %d arguments", c.Command.ArgsUsage, n)
	}
}

// showRows prints a list as JSON under its key, or as a table of T.
func showRows[T any](c *cli.Context, asJSON bool, key string, raw []json.RawMessage, titles []string, row func(T) []string) error {
	if asJSON {
		return printJSON(c.App.Writer, map[string]any{key: nonNil(raw)})
	}
	list, err := decodeRows[T](raw)
	if err != nil {
		return err
	}
	rows := make([][]string, len(list))
	for i, r := range list {
		rows[i] = row(r)
	}
	printTable(c.App.Writer, titles, rows)
	return nil
}

// showOne prints one resource as JSON, or as what facts says of it.
func showOne[T any](c *cli.Context, asJSON bool, raw json.RawMessage, facts func(T) [][2]string) error {
	if asJSON {
		return printJSON(c.App.Writer, raw)
	}
	var resource T
	if err := json.Unmarshal(raw, &resource); err != nil {
		return err
	}
	printFacts(c, facts(resource))
	return nil
}

// tell prints a line for a person; with JSON as output nothing but JSON is
// printed.
func tell(c *cli.Context, asJSON bool, format string, args ...any) {
	if !asJSON {
		fmt.Fprintln(c.App.Writer, clean(fmt.Sprintf(format, args...)))
	}
}
