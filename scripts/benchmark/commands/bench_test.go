package commands

import (
	"encoding/json"
	"io"
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
