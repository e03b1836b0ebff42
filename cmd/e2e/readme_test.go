package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The README's commands do what it shows. Its console blocks are one session in
// one shell, from the top of the tree; only scripts/test is left out, which
// runs this test.
func TestReadme(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	agents, rest := freePort(t), freePort(t)
	own := strings.NewReplacer("/tmp/muster-tour", dir, "127.0.0.1:7680", fmt.Sprint("127.0.0.1:", rest))
	sh := startShell(t,
		fmt.Sprint("MUSTER_LISTEN_AGENTS=tcp://127.0.0.1:", agents), fmt.Sprint("MUSTER_COORDINATOR=tcp://127.0.0.1:", agents),
		fmt.Sprint("MUSTER_LISTEN_HTTP=127.0.0.1:", rest), fmt.Sprint("MUSTER_SERVER=http://127.0.0.1:", rest))
	steps := consoleSteps(string(b))
	if len(steps) < 10 {
		t.Fatalf("only %d commands in the README", len(steps))
	}
	for _, s := range steps {
		if strings.HasPrefix(s.command, "scripts/test") {
			continue
		}
		sh.want(own.Replace(s.command), s.output)
	}
}

// step is one command of a console block and what it printed.
type step struct{ command, output string }

// consoleSteps reads the ```console blocks: "$ " begins a command, "> " goes on
// with it, and what follows is its output.
func consoleSteps(readme string) (steps []step) {
	inside := false
	for line := range strings.Lines(readme) {
		line = strings.TrimRight(line, "\n")
		command, begins := strings.CutPrefix(line, "$ ")
		more, goesOn := strings.CutPrefix(line, "> ")
		last := len(steps) - 1
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console"
		case !inside:
		case begins:
			steps = append(steps, step{command: command})
		case goesOn && steps[last].output == "":
			steps[last].command += "\n" + more
		default:
			steps[last].output += line + "\n"
		}
	}
	return steps
}

// shell is one bash that runs commands one after the other.
type shell struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

const shellMark = "--end-of-command--"

func startShell(t *testing.T, environ ...string) *shell {
	t.Helper()
	cmd := exec.Command("bash")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), environ...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with what it leaves in the background
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, outWriter, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = outWriter
	p := startProcess(t, "shell", cmd)
	outWriter.Close()
	t.Cleanup(func() {
		syscall.Kill(-p.pid(), syscall.SIGKILL) // nobody may be left in it
		out.Close()
	})
	return &shell{t: t, in: in, out: bufio.NewReader(out)}
}

// run returns what a command printed to its standard output.
func (s *shell) run(command string) string {
	s.t.Helper()
	if _, err := fmt.Fprintf(s.in, "%s\necho %s\n", command, shellMark); err != nil {
		s.t.Fatal(err)
	}
	var out strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if before, ended := strings.CutSuffix(line, shellMark+"\n"); ended {
			out.WriteString(before)
			return out.String()
		}
		if err != nil {
			s.t.Fatalf("%s: %v after %s", command, err, out.String())
		}
		out.WriteString(line)
	}
}

// want runs a command until it prints what is wanted: a reader is slower than
// this test, and what was started in the background may need a moment.
func (s *shell) want(command, output string) {
	s.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		got := s.run(command)
		if output == "" || stable(got) == stable(output) {
			return
		}
		if !strings.Contains(command, " list") || time.Now().After(deadline) {
			s.t.Errorf("$ %s\ngot:\n%s\nwant, in what is stable:\n%s", command, got, output)
			return
		}
		<-time.After(100 * time.Millisecond)
	}
}

var unstable = []struct {
	form *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`\b[0-9A-HJKMNP-TV-Z]{26}\b`), "ULID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?`), "TIME"},
	{regexp.MustCompile(`\b\d+(\.\d+)?(ms|µs|s)\b`), "TOOK"},
	{regexp.MustCompile(`\b(pid|"pid":) ?\d+`), "PID"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`\b(devel|v\d+\.\d+\.\d+\S*)\s`), "VERSION "},
	{regexp.MustCompile(`linux/\w+`), "SYSTEM"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(`(?m) $`), ""},
	{regexp.MustCompile(`\n+`), "\n"},
}

// stable leaves out what differs from run to run.
func stable(output string) string {
	for _, u := range unstable {
		output = u.form.ReplaceAllString(output, u.as)
	}
	return output
}
