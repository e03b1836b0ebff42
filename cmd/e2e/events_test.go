package e2e

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"sync"
)

// event is one of the event stream.
type event struct {
	Kind  string
	Agent struct {
		ID     string
		Status string
	}
	Target struct {
		CommandID string `json:"command_id"`
		AgentID   string `json:"agent_id"`
		State     string
	}
	Rollout configRollout
}

// events is an open event stream and what came of it so far.
type events struct {
	mu   sync.Mutex
	seen []event
	end  chan struct{} // closed when the server ended it
}

func (f *fleet) watch(query string) *events {
	f.t.Helper()
	token, err := os.ReadFile(f.tokenFile())
	if err != nil {
		f.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(f.t.Context(), "GET", f.url+"/v1/events"+query, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		f.t.Fatalf("GET /v1/events: %d", resp.StatusCode)
	}
	w := &events{end: make(chan struct{})}
	go func() {
		defer close(w.end)
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			data, ok := strings.CutPrefix(lines.Text(), "data:")
			var e event
			if ok && json.Unmarshal([]byte(data), &e) == nil {
				w.mu.Lock()
				w.seen = append(w.seen, e)
				w.mu.Unlock()
			}
		}
	}()
	return w
}

// count counts the events so far that match.
func (w *events) count(match func(event) bool) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.seen {
		if match(e) {
			n++
		}
	}
	return n
}
