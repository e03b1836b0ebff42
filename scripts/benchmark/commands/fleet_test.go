package commands

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"
)

// company has all parts that are ours in one process until the test ends: a
// coordinator and its agents, which are registered.
func company(t *testing.T, agents int, create func(*fleet) error) (*fleet, *client) {
	t.Helper()
	ports, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	v := variant{data: t.TempDir(), listen: ports[0], listenHTTP: ports[1]}
	f, api := newFleet(ports[0], agents), newClient(ports[1])
	if err := create(f); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
		api.http.CloseIdleConnections()
	})
	running.Go(func() {
		if err := v.run(ctx, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	err = poll(ctx, 30*time.Second, func() (bool, error) {
		resp, err := api.http.Get(api.url + "/readyz")
		if err != nil {
			return false, nil // not yet
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK, api.readToken(v.data)
	})
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() { f.run(ctx) })
	err = poll(ctx, 30*time.Second, func() (bool, error) {
		if f.tally.now().Registered < int64(agents) {
			return false, nil
		}
		n, err := api.online(ctx)
		return n == agents, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return f, api
}

// beatOften makes the fleet beat, and wants every beat to be taken.
func beatOften(t *testing.T, f *fleet) {
	t.Helper()
	if _, err := f.beat("10ms"); err != nil {
		t.Fatal(err)
	}
	err := poll(t.Context(), 30*time.Second, func() (bool, error) { return f.tally.now().Beats > int64(2*f.size), nil })
	if n := f.tally.now(); err != nil || n.Errors != 0 || n.Registrations != int64(f.size) {
		t.Errorf("the fleet did %+v, %v", n, err)
	}
}

func TestDealersBeat(t *testing.T) {
	f, api := company(t, 50, func(f *fleet) error { return f.makeDealers("", "") })
	beatOften(t, f)
	if n, err := api.offline(t.Context()); n != 0 || err != nil {
		t.Errorf("%d agents are OFFLINE, %v", n, err)
	}
}

func TestLeanAgentsBeatAndAnswer(t *testing.T) {
	f, api := company(t, 20, func(f *fleet) error { f.makeLean(); return nil })
	beatOften(t, f)
	const commands = 3
	for range commands {
		got, err := api.run(t.Context(), everybody)
		if err != nil || got.Counts.Succeeded != f.size {
			t.Fatalf("command is %+v, %v", got, err)
		}
		var target struct {
			State     string    `json:"state"`
			ExitCode  *int      `json:"exit_code"`
			Result    string    `json:"result"`
			StartTime time.Time `json:"start_time"`
			EndTime   time.Time `json:"end_time"`
		}
		if err := api.ask(t.Context(), "GET", "/v1/commands/"+got.ID+"/targets/"+agentID(7), nil, &target); err != nil {
			t.Fatal(err)
		}
		if target.State != "SUCCEEDED" || target.ExitCode == nil || *target.ExitCode != 0 || len(target.Result)+len(`""`) != resultSize ||
			time.Since(target.StartTime).Abs() > time.Minute || !target.EndTime.Equal(target.StartTime) {
			t.Errorf("target is %+v", target)
		}
	}
	want := int64(commands * f.size)
	err := poll(t.Context(), 30*time.Second, func() (bool, error) { return f.tally.now().Acks >= want, nil })
	if n := f.tally.now(); err != nil || n.Acks != want || n.Results != want || n.Errors != 0 {
		t.Errorf("the fleet did %+v, %v; want %d results, each acknowledged", n, err, want)
	}
	if n, err := api.offline(t.Context()); n != 0 || err != nil {
		t.Errorf("%d agents are OFFLINE, %v", n, err)
	}
}
