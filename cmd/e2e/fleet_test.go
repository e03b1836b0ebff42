package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fleet is one coordinator and its agents. The ports stay the same when the
// coordinator starts again.
type fleet struct {
	t           *testing.T
	dir         string
	endpoint    string // of the coordinator, for agents
	url         string // of its REST service
	upFlags     []string
	environ     []string // of the coordinator, besides this process's
	logTo       *os.File // where what is started next logs to; nil: a file
	coordinator *process
}

func startFleet(t *testing.T, upFlags ...string) *fleet {
	t.Helper()
	f := newFleet(t, upFlags...)
	f.startCoordinator()
	return f
}

// startFleetAt listens for agents on another address of this host.
func startFleetAt(t *testing.T, ip string, upFlags ...string) *fleet {
	t.Helper()
	f := newFleet(t, upFlags...)
	f.endpoint = fmt.Sprintf("tcp://%s:%d", ip, freePort(t))
	f.startCoordinator()
	return f
}

// startFrugal starts a fleet whose coordinator collects garbage early: what its
// memory grows by is what it keeps.
func startFrugal(t *testing.T) *fleet {
	t.Helper()
	f := newFleet(t)
	f.environ = []string{"GOGC=100"}
	f.startCoordinator()
	return f
}

// newFleet starts nothing.
func newFleet(t *testing.T, upFlags ...string) *fleet {
	t.Helper()
	return &fleet{
		t: t, dir: t.TempDir(), upFlags: upFlags,
		endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t)),
		url:      fmt.Sprintf("http://127.0.0.1:%d", freePort(t)),
	}
}

// dataFolder is the coordinator's.
func (f *fleet) dataFolder() string { return filepath.Join(f.dir, "coordinator") }

// freePort avoids the range from which the kernel takes ports for outgoing
// connections: an agent that dials such a port while nobody listens may connect
// to itself.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10_000 + rand.IntN(22_000)
		if ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			ln.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// startCoordinator returns when it serves.
func (f *fleet) startCoordinator() {
	f.t.Helper()
	cmd := exec.Command(filepath.Join(bin, "muster"), f.upArgs()...)
	cmd.Env = append(cmd.Environ(), f.environ...)
	f.coordinator = startProcess(f.t, "coordinator", cmd)
	eventually(f.t, 20*time.Second, "the coordinator is ready", func() bool {
		resp, err := http.Get(f.url + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// upArgs are those of startCoordinator.
func (f *fleet) upArgs() []string {
	return append([]string{"up", "--data", f.dataFolder(), "--listen-agents", f.endpoint, "--listen-http", strings.TrimPrefix(f.url, "http://")}, f.upFlags...)
}

func (f *fleet) logging(cmd *exec.Cmd) *exec.Cmd {
	if f.logTo != nil {
		cmd.Stdout, cmd.Stderr = f.logTo, f.logTo
	}
	return cmd
}

// startAgent starts one that may run exec; see waitOnline.
func (f *fleet) startAgent(id string, flags ...string) *process {
	f.t.Helper()
	return f.startAgentVia(f.endpoint, id, flags...)
}

// startAgentVia starts one that finds the coordinator at another endpoint.
func (f *fleet) startAgentVia(endpoint, id string, flags ...string) *process {
	f.t.Helper()
	args := append([]string{"--coordinator", endpoint, "--data", f.agentDir(id), "--id", id, "--allow", "exec"}, flags...)
	return startProcess(f.t, id, f.logging(exec.Command(filepath.Join(bin, "muster-agentd"), args...)))
}

func (f *fleet) agentDir(id string) string { return filepath.Join(f.dir, id) }
func (f *fleet) tokenFile() string         { return filepath.Join(f.dataFolder(), "admin.token") }

// operator is the operator's command line against this fleet, to be started.
func (f *fleet) operator(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(f.t.Context(), filepath.Join(bin, "muster"), args...)
	cmd.Env = append(cmd.Environ(), "MUSTER_SERVER="+f.url, "MUSTER_TOKEN_FILE="+f.tokenFile())
	return cmd
}

// muster runs the operator's command line.
func (f *fleet) muster(args ...string) (stdout, stderr string, code int) {
	f.t.Helper()
	cmd := f.operator(args...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		f.t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

type agent struct {
	ID           string
	Status       string
	RunID        string    `json:"run_id"`
	RegisterTime time.Time `json:"register_time"`
	Address      string
	Queue        struct {
		LastRefusal string `json:"last_refusal"`
	}
	Left     bool
	Conflict struct {
		Address        string
		RefusedAddress string `json:"refused_address"`
	}
	Attributes struct{ PID int }
}

type command struct {
	ID      string
	State   string
	Counts  map[string]int
	EndTime string `json:"end_time"`
}

type target struct {
	AgentID   string `json:"agent_id"`
	State     string
	Reason    string
	Signal    string
	ExitCode  *int      `json:"exit_code"`
	StartTime time.Time `json:"start_time"`
	EndTime   time.Time `json:"end_time"`
	Late      *target
}

func (t target) final() bool {
	return !slices.Contains([]string{"", "QUEUED", "SENT", "RECEIVED", "RUNNING"}, t.State)
}

// ask sends a REST request. An error means that no whole answer came.
func (f *fleet) ask(method, path, body string) (status int, answer []byte, err error) {
	return f.askWith(http.Header{}, method, path, body)
}

func (f *fleet) askWith(header http.Header, method, path, body string) (status int, answer []byte, err error) {
	token, err := os.ReadFile(f.tokenFile())
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header = header
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	if body != "" && header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// do sends a request that must succeed with the status, and decodes the answer.
func (f *fleet) do(method, path, body string, status int, out any) {
	f.t.Helper()
	got, answer, err := f.ask(method, path, body)
	if err != nil {
		f.t.Fatalf("%s %s: %v", method, path, err)
	}
	if got != status {
		f.t.Fatalf("%s %s: %d, want %d: %s", method, path, got, status, answer)
	}
	if out == nil {
		return
	}
	if err := json.Unmarshal(answer, out); err != nil {
		f.t.Fatalf("%s %s: %v in %s", method, path, err, answer)
	}
}

// waitOnline returns when all these agents are ONLINE.
func (f *fleet) waitOnline(ids ...string) {
	f.t.Helper()
	var status map[string]string
	eventually(f.t, 30*time.Second, fmt.Sprintf("%q online", ids), func() bool {
		status = f.statuses()
		return !slices.ContainsFunc(ids, func(id string) bool { return status[id] != "ONLINE" })
	})
}

func (f *fleet) statuses() map[string]string {
	f.t.Helper()
	status := map[string]string{}
	for page := ""; ; {
		var list struct {
			Agents []agent
			Next   string `json:"next_page_token"`
		}
		f.do("GET", "/v1/agents?page_size=1000"+page, "", http.StatusOK, &list)
		for _, a := range list.Agents {
			if status[a.ID] != "" {
				f.t.Errorf("%s is listed twice", a.ID)
			}
			status[a.ID] = a.Status
		}
		if list.Next == "" {
			return status
		}
		page = "&page_token=" + url.QueryEscape(list.Next)
	}
}

func (f *fleet) agent(id string) (a agent) {
	f.t.Helper()
	f.do("GET", "/v1/agents/"+url.PathEscape(id), "", http.StatusOK, &a)
	return a
}

// commandBody is a request to run a shell script with arguments on agents.
func commandBody(agents []string, script string, args ...string) string {
	b, err := json.Marshal(map[string]any{
		"type":   "exec",
		"input":  map[string]any{"argv": append([]string{"sh", "-c", script, "sh"}, args...)},
		"target": map[string]any{"agents": agents},
	})
	if err != nil {
		panic(err) // it has strings only
	}
	return string(b)
}

// submit posts a command and returns its id.
func (f *fleet) submit(body string) string {
	f.t.Helper()
	var cmd command
	f.do("POST", "/v1/commands", body, http.StatusAccepted, &cmd)
	return cmd.ID
}

// waitDone returns the targets of a command when all are final.
func (f *fleet) waitDone(id string, within time.Duration) map[string]target {
	f.t.Helper()
	var cmd command
	eventually(f.t, within, "command "+id+" is done", func() bool {
		f.do("GET", "/v1/commands/"+id+"?wait=1s", "", http.StatusOK, &cmd)
		return cmd.State == "DONE"
	})
	return f.targets(id)
}

// waitState returns when a target is in that state.
func (f *fleet) waitState(id, agent, state string, within time.Duration) {
	f.t.Helper()
	eventually(f.t, within, fmt.Sprintf("%s is %s on %s", id, state, agent), func() bool { return f.targets(id)[agent].State == state })
}

func (f *fleet) targets(id string) map[string]target {
	f.t.Helper()
	var list struct{ Targets []target }
	f.do("GET", "/v1/commands/"+id+"/targets?page_size=1000", "", http.StatusOK, &list)
	byAgent := map[string]target{}
	for _, t := range list.Targets {
		byAgent[t.AgentID] = t
	}
	return byAgent
}

func (f *fleet) stdout(id, agent string) string {
	f.t.Helper()
	status, b, err := f.ask("GET", "/v1/commands/"+id+"/targets/"+agent+"/output?stream=stdout", "")
	if err != nil || status != http.StatusOK {
		f.t.Fatalf("output of %s on %s: %d %s %v", id, agent, status, b, err)
	}
	return string(b)
}

// linesOf reads a file that programs append to; a missing one is empty.
func linesOf(t *testing.T, file string) []string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(to), 0o700)
	if err == nil {
		err = os.WriteFile(to, []byte(readFile(t, from)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// nonce is a word that nothing else has.
func nonce() string { return fmt.Sprintf("nonce-%016x", rand.Uint64()) }
