package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/musterhq/muster/scripts/benchmark/bus"
	"github.com/musterhq/muster/scripts/benchmark/report"
)

// options are the flags that all benchmarks have.
type options struct {
	*flag.FlagSet
	short, check bool
	page         string
}

func newOptions(name string) *options {
	o := &options{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError)}
	o.BoolVar(&o.short, "short", false, "a quick look: too short to trust, not written to the page")
	o.BoolVar(&o.check, "check", false, "fail when a bar is missed")
	o.StringVar(&o.page, "page", "", "file to write the results to")
	return o
}

// publish shows the text of a section, whose tables differ from those in the page.
func (o *options) publish(section, terminal, markdown string) error {
	fmt.Println(terminal)
	if o.page == "" || o.short {
		return nil
	}
	return report.Replace(o.page, section, markdown)
}

func bench(ctx context.Context, args []string) error {
	o := newOptions("bus")
	cfg := bus.Config{Windows: []int{1, 20}, Warm: 300 * time.Millisecond}
	o.StringVar(&cfg.Libzmq, "libzmq", "", "libzmq's server, a program")
	o.IntVar(&cfg.Runs, "runs", 5, "rounds, of which the median is taken")
	o.DurationVar(&cfg.Time, "time", 2*time.Second, "length of a run")
	peers := o.Int("peers", 0, "measure with this number of peers only (1000 and 4000)")
	only := o.String("only", "", "servers to measure: echo, libzmq, zmq4, muster, libzmq-curve, muster-curve")
	o.StringVar(&cfg.Profile, "cpuprofile", "", "folder for CPU profiles of the servers in Go; without -only: of ours")
	if err := o.Parse(args); err != nil {
		return err
	}
	cfg.Peers = []int{1000, 4000}
	if o.short {
		cfg.Runs, cfg.Time, cfg.Peers = 1, 500*time.Millisecond, cfg.Peers[:1]
	}
	if *peers > 0 {
		cfg.Peers = []int{*peers}
	}
	if cfg.Profile != "" && *only == "" {
		*only = "muster,muster-curve"
	}
	if *only != "" {
		cfg.Only = strings.Split(*only, ",")
	}
	if *only != "" || *peers > 0 {
		o.page = "" // it holds whole results only
	}
	return benchBus(ctx, o, cfg)
}

func benchBus(ctx context.Context, o *options, cfg bus.Config) (err error) {
	if cfg.Program, err = os.Executable(); err != nil {
		return err
	}
	version, err := exec.CommandContext(ctx, cfg.Libzmq, "version").Output()
	if err != nil {
		return fmt.Errorf("libzmq's server %q: %w", cfg.Libzmq, err)
	}
	place := machine()
	results, err := bus.Run(ctx, cfg, os.Stderr)
	if err != nil {
		return err
	}
	rates := results.Rates()
	bars, missed := results.Bars()
	facts := fmt.Sprintf("%s; libzmq %s; medians of %d rounds of %v.", place, strings.TrimSpace(string(version)), cfg.Runs, cfg.Time)
	err = o.publish("bus",
		facts+"\n"+rates.Terminal()+"\n"+bars.Terminal(),
		"## Round trips over the bus\n\n"+about+facts+"\n\n"+rates.Markdown()+"\n\n"+bars.Markdown())
	if err != nil {
		return err
	}
	if o.check && missed > 0 {
		return fmt.Errorf("%w: %d of them", errMissed, missed)
	}
	return nil
}

const about = `` + "`scripts/bench bus`" + `. A round trip is a message of three frames (type, empty envelope, 100-byte body) that the server sends back; raw TCP echoes the same bytes.
muster decodes each message and encodes the answer; the others hand on the bytes. Window is the number of messages that each peer keeps under way. libzmq runs
with 1 and with 2 I/O threads: the faster counts. CPU is spent for one round trip. KB per idle peer is resident memory after a first round trip. A ratio is the median over
rounds of the ratio within a round; by CPU it is that of the CPU time spent, server and load, which other work on the machine disturbs less.
`

func stall(ctx context.Context, args []string) error {
	o := newOptions("stall")
	cfg := bus.StallConfig{Peers: 1000, Warm: 500 * time.Millisecond}
	o.IntVar(&cfg.Pairs, "pairs", 7, "pairs of runs, of which the median is taken")
	o.DurationVar(&cfg.Time, "time", 3*time.Second, "length of a run; a peer that does not read is cut after 10s")
	if err := o.Parse(args); err != nil {
		return err
	}
	if o.short {
		cfg.Pairs, cfg.Time = 1, time.Second
	}
	var err error
	if cfg.Program, err = os.Executable(); err != nil {
		return err
	}
	place := machine()
	result, err := bus.RunStall(ctx, cfg, os.Stderr)
	if err != nil {
		return err
	}
	table, good := result.Table()
	err = o.publish("stall", table.Terminal(), "## One peer stops reading\n\n"+aboutStall+place+".\n\n"+table.Markdown())
	if err == nil && o.check && !good {
		err = errMissed
	}
	return err
}

const aboutStall = `` + "`scripts/bench stall`" + `. 1,000 peers; one of them stops reading while 1,000 commands a second of 4 KiB are pushed to it, and its queue is full. p99 of the
others' round trips, window 1, in pairs of runs with and without it.
`
