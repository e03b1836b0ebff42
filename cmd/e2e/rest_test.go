package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// Pages of a list that grows meanwhile, across a restart of the coordinator and
// in both orders: what was there from start to end is there exactly once.
func TestC094PagesWhileTheListGrows(t *testing.T) {
	t.Parallel()
	const before, size = 150, 7
	f := startFleet(t)
	f.startAgent("a1")
	f.waitOnline("a1")
	ping := `{"type":"ping","target":{"agents":["a1"]}}`
	known := map[string]bool{}
	for range before {
		known[f.submit(ping)] = true
	}
	for _, order := range []string{"asc", "desc"} {
		times, pages := map[string]int{}, 0
		for token := ""; ; pages++ {
			var page struct {
				Commands []command
				Next     string `json:"next_page_token"`
			}
			path := fmt.Sprintf("/v1/commands?page_size=%d&order=%s", size, order)
			if token != "" {
				path += "&page_token=" + url.QueryEscape(token)
			}
			f.do("GET", path, "", http.StatusOK, &page)
			for _, cmd := range page.Commands {
				times[cmd.ID]++
			}
			if token = page.Next; token == "" {
				break
			}
			if pages%3 == 0 {
				f.submit(ping)
			}
			if pages == before/size/2 {
				f.coordinator.kill()
				f.startCoordinator()
			}
			if pages > 2*before {
				t.Fatalf("%s: no end after %d pages", order, pages)
			}
		}
		for id := range known {
			if times[id] != 1 {
				t.Errorf("%s: %s is there %d times", order, id, times[id])
			}
		}
		for id, n := range times {
			if n > 1 {
				t.Errorf("%s: %s is there %d times", order, id, n)
			}
		}
	}
	for _, bad := range []string{"page_token=nonsense", "page_token=", "page_size=0", "page_size=-1", "page_size=abc", "page_size=9223372036854775808",
		"page_size=5&page_size=6", "order=up", "filter=state", "filter=nonsense(", "page_token=" + strings.Repeat("A", 10<<10)} {
		if status, answer, err := f.ask("GET", "/v1/commands?"+bad, ""); err != nil || status != http.StatusBadRequest {
			t.Errorf("C095, %.40s: %d %s %v", bad, status, answer, err)
		}
	}
}

// One key makes one command: one request after the other, many at once, after
// kill -9 right behind the first answer, and with other spacing in the JSON.
// Another body under the key is refused, and a mistake does not use it up.
func TestC099IdempotencyKeyOutlivesTheCoordinator(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.startAgent("a1")
	f.waitOnline("a1")
	post := func(key, body string) (status int, id string) {
		status, answer, err := f.askWith(http.Header{"Idempotency-Key": {key}}, "POST", "/v1/commands", body)
		if err != nil {
			t.Error(err)
		}
		if status == http.StatusAccepted {
			id = idOf(t, answer)
		}
		return status, id
	}
	const body = `{"type":"ping","name":"once","target":{"agents":["a1"]}}`
	if status, _ := post("k1", `{"type":"ping","target":{"agents":["nobody"]}}`); status != http.StatusUnprocessableEntity {
		t.Errorf("a mistake: %d", status)
	}
	_, first := post("k1", body)
	f.coordinator.kill()
	f.startCoordinator()
	for _, same := range []string{body, `{ "target": {"agents": ["a1"]}, "name": "once", "type": "ping" }`} {
		if status, id := post("k1", same); status != http.StatusAccepted || id != first {
			t.Errorf("the same again: %d %s, want %s", status, id, first)
		}
	}
	if status, _ := post("k1", strings.Replace(body, "once", "twice", 1)); status != http.StatusConflict {
		t.Errorf("another body: %d", status)
	}
	ids := make([]string, 20)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() { _, ids[i] = post("k2", body) })
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Errorf("at once: %q", ids)
			break
		}
	}
	for _, bad := range []string{strings.Repeat("k", 10<<10), "a\tb"} {
		if status, _ := post(bad, body); status < 400 || status >= 500 {
			t.Errorf("key %.20q: %d", bad, status)
		}
	}
	var list struct{ Commands []command }
	if f.do("GET", "/v1/commands", "", http.StatusOK, &list); len(list.Commands) != 2 {
		t.Errorf("%d commands, want 2", len(list.Commands))
	}
}
