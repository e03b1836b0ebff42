package main

import (
	"io"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/musterhq/muster/cmd/internal/arguments"
	"github.com/musterhq/muster/cmd/internal/release"
)

func TestEveryFlagHasItsVariable(t *testing.T) {
	var walk func(path string, commands []*cli.Command)
	walk = func(path string, commands []*cli.Command) {
		for _, c := range commands {
			for _, f := range c.Flags {
				doc, ok := f.(cli.DocGenerationFlag)
				if !ok || len(doc.GetEnvVars()) == 0 || !strings.HasPrefix(doc.GetEnvVars()[0], "MUSTER_") {
					t.Errorf("%s %s --%s has no MUSTER_ variable", path, c.Name, f.Names()[0])
				}
			}
			walk(path+" "+c.Name, c.Subcommands)
		}
	}
	walk("muster", newApp(io.Discard, io.Discard).Commands)
}

func TestUsageErrorsEndWith1(t *testing.T) {
	for _, args := range []string{
		"nonsense", "agents nonsense", "agents list --nonsense", "agents show", "agents show a b", "run --nonsense a1",
		"commands output C1", "commands output C1 a1 --stream both", "agents list --server nonsense", "up --log loud", "up --keep-for 0s", "up --forget-after soon", "up --offline-commands never", "up --keep-commands 0", "up --keep-bytes 10GB", "commands cancel", "commands pause C1 C2", "agents maintenance a1", "up nonsense", "--nonsense",
		"groups show", "groups put", "groups list web", "configs bind", "configs put nginx", "configs diff a b", "configs rollout nonsense", "configs rollout watch", "configs rollout pause",
	} {
		var stdout, stderr strings.Builder
		code := run(t.Context(), append([]string{"muster"}, strings.Fields(args)...), &stdout, &stderr)
		if code != 1 || strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("muster %s: exit %d\nstdout %s\nstderr %s", args, code, stdout.String(), stderr.String())
		}
	}
}

func TestProgressLine(t *testing.T) {
	for want, c := range map[string]counts{
		"[====================] 0/0":                                      {},
		"[                    ] 0/3  queued 3":                            {Total: 3, Queued: 3},
		"[=============       ] 2/3  running 1, succeeded 1, timed out 1": {Total: 3, Running: 1, Succeeded: 1, TimedOut: 1},
	} {
		if got := progressLine(c); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

func TestTableIsHarmlessToATerminal(t *testing.T) {
	var out strings.Builder
	printTable(&out, []string{"A", "B"}, [][]string{{"x\x1b[2Jy", "tab\tnew\nline"}, {"\u202egnol", "bad\xffutf"}})
	want := "A       B\nx·[2Jy  tab new·line\n·gnol   bad·utf\n"
	if got := out.String(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A long reason is whole where it is piped, and wrapped where it is looked at.
func TestTableFitsATerminal(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("words ", 30))
	rows := [][]string{{"a1", long}, {"a2", "short"}}
	var piped, shown strings.Builder
	printTable(&piped, []string{"AGENT", "REASON"}, rows)
	if !strings.Contains(piped.String(), "a1     "+long+"\n") {
		t.Errorf("piped: %s", piped.String())
	}
	printTableIn(&shown, 40, []string{"AGENT", "REASON"}, rows)
	for line := range strings.Lines(shown.String()) {
		if len(line) > 41 {
			t.Errorf("%d characters: %s", len(line), line)
		}
	}
	if got := strings.Count(shown.String(), "words"); got != 30 {
		t.Errorf("%d words of 30:\n%s", got, shown.String())
	}
}

// The line of a rollout that stands still says whom it waits for.
func TestRolloutLineNamesWhomItWaitsFor(t *testing.T) {
	why := "waiting for a3 (SUSPECT): " + strings.Repeat("x", 100)
	r := configRollout{State: "RUNNING", StateReason: why, Counts: rolloutCounts{Total: 3, Waiting: 1, Applied: 2}}
	if line := rolloutLine(r); !strings.Contains(line, why) {
		t.Error(line)
	}
}

func TestHelpTellsOneDefaultAndTheVersion(t *testing.T) {
	var out strings.Builder
	app := newApp(&out, &out)
	for _, flag := range arguments.Unclear("muster", app.Flags, app.Commands) {
		t.Errorf("two defaults: %s", flag)
	}
	if err := app.RunContext(t.Context(), []string{"muster", "--version"}); err != nil || out.String() != "muster version "+release.Version()+"\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
