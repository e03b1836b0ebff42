package main

import (
	"fmt"
	"io"
	"strings"
)

// progress shows one line that changes: in place on a terminal, otherwise a new
// line for each change.
type progress struct {
	w     io.Writer
	width int // of the terminal; 0: it is none
	last  string
}

func newProgress(w io.Writer) *progress {
	return &progress{w: w, width: terminalWidth(w)}
}

func (p *progress) show(line string) {
	if line == p.last {
		return
	}
	p.last = line
	if p.width > 0 {
		fmt.Fprintf(p.w, "\r\x1b[K%s", cut(line, p.width))
	} else {
		fmt.Fprintln(p.w, line)
	}
}

// clear makes room for other text.
func (p *progress) clear() {
	if p.width > 0 && p.last != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	p.last = ""
}

// stateLine is the progress of a command, and what holds it up.
func stateLine(cmd command) string {
	line := progressLine(cmd.Counts)
	if cmd.State == "PAUSED" || cmd.State == "HALTED" {
		line += "  " + cmd.State
		if cmd.StateReason != "" && !strings.EqualFold(cmd.StateReason, cmd.State) {
			line += ": " + clean(cmd.StateReason)
		}
	}
	return line
}

// progressLine is such as "[======    ] 2/3  running 1, succeeded 2".
func progressLine(c counts) string { return barLine(c.Total-c.open(), c.Total, countList(c)) }

// barLine is a bar, and words about it.
func barLine(done, total int, words string) string {
	const width = 20
	full := width
	if total > 0 {
		full = width * done / total
	}
	line := fmt.Sprintf("[%s%s] %d/%d", strings.Repeat("=", full), strings.Repeat(" ", width-full), done, total)
	if words != "" {
		line += "  " + words
	}
	return line
}

// countList names the states that some target is in.
func countList(c counts) string {
	return listOf([]counted{
		{"queued", c.Queued}, {"sent", c.Sent}, {"received", c.Received}, {"running", c.Running}, {"succeeded", c.Succeeded},
		{"failed", c.Failed}, {"timed out", c.TimedOut}, {"interrupted", c.Interrupted}, {"rejected", c.Rejected},
		{"cancelled", c.Cancelled}, {"expired", c.Expired}, {"lost", c.Lost},
	})
}

// counted is how many are in a state.
type counted struct {
	name string
	n    int
}

// listOf names the states that there are some in.
func listOf(states []counted) string {
	var parts []string
	for _, s := range states {
		if s.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", s.name, s.n))
		}
	}
	return strings.Join(parts, ", ")
}
