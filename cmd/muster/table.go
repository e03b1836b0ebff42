package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/urfave/cli/v2"
)

func outputFlag() cli.Flag {
	return &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: table or json", Value: "table",
		EnvVars: []string{"MUSTER_OUTPUT"}}
}

// wantsJSON also refuses a format that does not exist.
func wantsJSON(c *cli.Context) (bool, error) {
	switch c.String("output") {
	case "json":
		return true, nil
	case "table":
		return false, nil
	}
	return false, usagef("--output %q: want table or json", c.String("output"))
}

// printJSON writes what the server sent, indented and otherwise untouched.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printTable aligns rows under their titles. Cells are for a terminal: control
// characters of whoever wrote them are taken out. On a terminal the last column
// is wrapped to its width; elsewhere each row is one line, and whole.
func printTable(w io.Writer, titles []string, rows [][]string) {
	printTableIn(w, terminalWidth(w), titles, rows)
}

func printTableIn(w io.Writer, width int, titles []string, rows [][]string) {
	t := table.NewWriter()
	t.SetStyle(table.Style{
		Name:    "muster",
		Box:     table.BoxStyle{PaddingRight: "  "},
		Format:  table.FormatOptions{Header: text.FormatDefault},
		Options: table.OptionsNoBordersAndSeparators,
	})
	t.SuppressTrailingSpaces()
	t.AppendHeader(tableRow(titles))
	for _, row := range rows {
		t.AppendRow(tableRow(row))
	}
	if width > 0 {
		t.SetColumnConfigs([]table.ColumnConfig{{Number: len(titles), WidthMax: lastWidth(width, titles, rows), WidthMaxEnforcer: text.WrapSoft}})
	}
	fmt.Fprintln(w, t.Render())
}

// lastWidth is what is left for the last column.
func lastWidth(width int, titles []string, rows [][]string) int {
	const least, between = 20, 2
	for i, title := range titles[:len(titles)-1] {
		widest := text.StringWidth(title)
		for _, row := range rows {
			widest = max(widest, text.StringWidth(clean(row[i])))
		}
		width -= widest + between
	}
	return max(width, least)
}

func tableRow(cells []string) table.Row {
	row := make(table.Row, len(cells))
	for i, cell := range cells {
		row[i] = clean(cell)
	}
	return row
}

// clean makes text from afar harmless to a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsControl(r) || unicode.In(r, unicode.Cf):
			return '·'
		}
		return r
	}, strings.ToValidUTF8(s, "·"))
}

// lineOf is the first line of a text that has something on it.
func lineOf(b []byte) string {
	for line := range strings.Lines(string(b)) {
		if s := strings.TrimSpace(line); s != "" {
			return s
		}
	}
	return ""
}

// oneLine is all of a text, whatever its lines.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// cut shortens s to n characters.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// moment is a time as people read it, in their zone.
func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func took(start, end time.Time) string {
	if start.IsZero() || end.IsZero() {
		return "-"
	}
	d := max(end.Sub(start), 0)
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func tagList(tags map[string]string) string {
	list := make([]string, 0, len(tags))
	for k, v := range tags {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}
