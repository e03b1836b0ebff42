package commands

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

// Config says what is measured, and with what.
type Config struct {
	Program string // this one
	Muster  string // the programs of the product
	Agentd  string
	Dir     string // for data; on the disk that is to be measured

	Agents   int           // of a large fleet
	Few      int           // of a small one
	Rounds   int           // of each comparison, of which the median is taken
	Commands int           // in a round of results
	Starts   int           // of the real program
	Restarts int           // of the coordinator
	Time     time.Duration // that heartbeats are watched
	Idle     time.Duration // before memory is read
	Only     []string      // measurements by name (all)
	Profile  string        // folder for CPU profiles, of a variant in place of `muster up` (none)
}

// measurements in the order of the report.
var measurements = []struct {
	name string
	take func(*bench, context.Context) error
}{
	{"spread", (*bench).spread},
	{"results", (*bench).results},
	{"start", (*bench).starts},
	{"sessions", (*bench).sessions},
	{"curve", (*bench).curveSessions},
}

// Names are what Config.Only may hold.
func Names() (names []string) {
	for _, m := range measurements {
		names = append(names, m.name)
	}
	return names
}

// bench is one run.
type bench struct {
	cfg      Config
	progress io.Writer
	rows     Results
}

// Run measures, and tells progress of it.
func Run(ctx context.Context, cfg Config, progress io.Writer) (Results, error) {
	b := &bench{cfg: cfg, progress: progress}
	for _, m := range measurements {
		if len(cfg.Only) > 0 && !slices.Contains(cfg.Only, m.name) {
			continue
		}
		b.tell("– %s", m.name)
		if err := m.take(b, ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return b.rows, nil
}

func (b *bench) tell(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }

// each takes a sample of every contestant in every round, in turn; a round begins
// with another one each time. The first round warms up and does not count.
func (b *bench) each(ctx context.Context, what string, contestants ...*contestant) error {
	for round := range b.cfg.Rounds + 1 {
		for i := range contestants {
			c := contestants[(round+i)%len(contestants)]
			taken, err := c.sample(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			b.tell("%s, round %d of %d: %s %.0f ms, CPU %.0f + %.0f ms", what, round, b.cfg.Rounds, c.name,
				millis(taken.wall), millis(taken.server), millis(taken.load))
			if round > 0 {
				c.samples = append(c.samples, taken)
			}
		}
	}
	return nil
}

// contestant does the same work as others.
type contestant struct {
	name    string
	once    func() error
	cpu     func() (server, load time.Duration, err error)
	samples []sample
}

type sample struct{ wall, server, load time.Duration }

// rest is the time after the work in which what was put off is done: it counts as
// CPU time of who put it off, and does not disturb who comes next.
const rest = 600 * time.Millisecond

// sample does the work once.
func (c *contestant) sample(ctx context.Context) (s sample, err error) {
	server, load, err := c.cpu()
	if err != nil {
		return s, err
	}
	start := time.Now()
	if err := c.once(); err != nil {
		return s, err
	}
	s.wall = time.Since(start)
	if err := pause(ctx, rest); err != nil {
		return s, err
	}
	s.server, s.load, err = c.cpu()
	s.server -= server
	s.load -= load
	return s, err
}

func (c *contestant) walls() (walls []time.Duration) {
	for _, s := range c.samples {
		walls = append(walls, s.wall)
	}
	return walls
}

// against is the median over rounds of how much longer c took than other, by the
// clock and by CPU time.
func (c *contestant) against(other *contestant) (wall, cpu float64) {
	var walls, cpus []float64
	for i, s := range c.samples {
		o := other.samples[i]
		walls = append(walls, float64(s.wall)/float64(o.wall))
		cpus = append(cpus, float64(s.server+s.load)/float64(o.server+o.load))
	}
	return median(walls), median(cpus)
}

// median of an odd number of values, or the lower of the two in the middle.
func median[T float64 | time.Duration](values []T) T { return quantile(values, 0.5) }

// quantile is the smallest value that a share of all does not exceed; 0 of none.
func quantile[T float64 | time.Duration](values []T, share float64) T {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	i := int(share*float64(len(values))+0.999999) - 1
	return values[min(max(i, 0), len(values)-1)]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
