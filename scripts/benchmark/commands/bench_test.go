package commands

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for share, want := range map[float64]float64{0.5: 3, 0.99: 5, 0.2: 1, 1: 5, 0: 1} {
		if got := quantile(values, share); got != want {
			t.Errorf("quantile %v is %v, want %v", share, got, want)
		}
	}
	if got := median([]time.Duration{1, 2}); got != 1 {
		t.Errorf("median of two is %v, want the lower", got)
	}
	if got := median[float64](nil); got != 0 {
		t.Errorf("median of nothing is %v", got)
	}
}

func TestRatiosAreThoseOfRounds(t *testing.T) {
	ours := &contestant{samples: []sample{{wall: 10, server: 3, load: 3}, {wall: 30, server: 8, load: 2}, {wall: 90, server: 1, load: 1}}}
	theirs := &contestant{samples: []sample{{wall: 10, server: 1, load: 1}, {wall: 10, server: 5, load: 5}, {wall: 45, server: 1, load: 1}}}
	wall, cpu := ours.against(theirs)
	if wall != 2 || cpu != 1 {
		t.Errorf("ratios are %v and %v by CPU, want 2 and 1", wall, cpu)
	}
}

func TestBars(t *testing.T) {
	slow := &contestant{samples: []sample{{wall: 2 * time.Second}}}
	fast := &contestant{samples: []sample{{wall: time.Second}}}
	var r Results
	r.compare("time", slow, fast, 2)
	r.compare("time", slow, fast, 1.9)
	r.rate("rate", slow, fast, 10, 0.5)
	r.rate("rate", slow, fast, 10, 0.51)
	r.start("start", 2*time.Millisecond, 100*time.Microsecond, 1200*time.Microsecond)
	r.start("start", 2*time.Millisecond, 300*time.Microsecond, 1200*time.Microsecond) // a slow disk has a bar of its own
	for i, want := range []bool{true, false, true, false, false, true} {
		if r[i].Reached != want {
			t.Errorf("row %d, %s %s: reached is %v", i, r[i].Measured, r[i].Bar, r[i].Reached)
		}
	}
	if _, missed := r.Table(); missed != 3 {
		t.Errorf("%d bars missed, want 3", missed)
	}
}

func TestOrdersAreAnswered(t *testing.T) {
	var out strings.Builder
	err := obey(strings.NewReader("tally\nbeat 1s\nbeat x\nnonsense\n"), &out, map[string]func(string) (any, error){
		"tally": func(string) (any, error) { return Tally{Registered: 7}, nil },
		"beat":  (&fleet{}).beat,
	})
	if err != nil {
		t.Fatal(err)
	}
	var answers []answer
	for d := json.NewDecoder(strings.NewReader(out.String())); ; {
		var a answer
		if err := d.Decode(&a); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	if len(answers) != 4 || !strings.Contains(string(answers[0].Value), `"Registered":7`) ||
		answers[1].Error != "" || answers[2].Error == "" || answers[3].Error == "" {
		t.Errorf("answers are %+v", answers)
	}
}

// TestFleetAnswers has all parts that are ours in one process.
func TestFleetAnswers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ports, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	v := variant{data: t.TempDir(), listen: ports[0], listenHTTP: ports[1]}
	f := &fleet{endpoint: "tcp://" + ports[0], size: 50, result: resultOf(resultSize), runID: "run"}
	if err := f.make("", ""); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() { ended <- v.run(ctx, slog.New(slog.DiscardHandler)) }()
	go func() { f.run(ctx); ended <- nil }()
	defer func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()
	api := newClient(ports[1])
	defer api.http.CloseIdleConnections()
	err = poll(ctx, 30*time.Second, func() (bool, error) {
		if f.tally.now().Registered < int64(f.size) {
			return false, nil
		}
		if err := api.readToken(v.data); err != nil {
			return false, err
		}
		n, err := api.online(ctx)
		return n == f.size, err
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := api.run(ctx, everybody)
	if err != nil || got.Counts.Succeeded != f.size {
		t.Fatalf("command is %+v, %v", got, err)
	}
	if n, err := api.offline(ctx); n != 0 || err != nil {
		t.Errorf("%d agents are OFFLINE, %v", n, err)
	}
	if _, err := f.beat("10ms"); err != nil {
		t.Fatal(err)
	}
	err = poll(ctx, 30*time.Second, func() (bool, error) { return f.tally.now().Beats > int64(2*f.size), nil })
	if n := f.tally.now(); err != nil || n.Errors != 0 || n.Registrations != int64(f.size) {
		t.Errorf("the fleet did %+v, %v", n, err)
	}
}
