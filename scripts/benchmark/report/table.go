package report

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Table is a table under construction.
type Table struct {
	w       table.Writer
	columns int
}

// NewTable makes a table; numbers of columns but the first are to the right.
func NewTable(columns ...string) *Table {
	t := &Table{w: table.NewWriter(), columns: len(columns)}
	t.w.SetStyle(table.StyleLight)
	t.w.Style().Format.Header = text.FormatDefault
	t.w.AppendHeader(row(columns))
	var configs []table.ColumnConfig
	for i := 2; i <= len(columns); i++ {
		configs = append(configs, table.ColumnConfig{Number: i, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.w.SetColumnConfigs(configs)
	return t
}

// Add adds a row.
func (t *Table) Add(cells ...string) {
	if len(cells) != t.columns {
		panic(fmt.Sprintf("report: %d cells in a row of %d", len(cells), t.columns))
	}
	t.w.AppendRow(row(cells))
}

func row(cells []string) (r table.Row) {
	for _, c := range cells {
		r = append(r, c)
	}
	return r
}

// Terminal is the table for people at a terminal.
func (t *Table) Terminal() string { return t.w.Render() }

// Markdown is the table for the page.
func (t *Table) Markdown() string { return t.w.RenderMarkdown() }
