package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/musterhq/muster/scripts/benchmark/commands"
)

func benchCommands(ctx context.Context, args []string) (err error) {
	o := newOptions("commands")
	cfg := commands.Config{Agents: 9000, Few: 1000, Commands: 100, Restarts: 3}
	o.StringVar(&cfg.Muster, "muster", "muster", "the program muster")
	o.StringVar(&cfg.Agentd, "agentd", "muster-agentd", "the program muster-agentd")
	o.StringVar(&cfg.Dir, "dir", "", "folder for data, on the disk to be measured (the system's for temporary files)")
	o.IntVar(&cfg.Agents, "agents", cfg.Agents, "agents of a large fleet")
	o.IntVar(&cfg.Rounds, "runs", 25, "rounds, of which the median is taken")
	o.IntVar(&cfg.Starts, "starts", 500, "programs started")
	o.DurationVar(&cfg.Time, "time", 10*time.Second, "how long heartbeats are watched")
	o.DurationVar(&cfg.Idle, "idle", 25*time.Second, "how long a fleet idles before memory is read")
	o.StringVar(&cfg.Profile, "cpuprofile", "", "folder for CPU profiles of the coordinator, which then is not muster up, but a variant of it")
	only := o.String("only", "", "measure this only: "+strings.Join(commands.Names(), ", "))
	if err := o.Parse(args); err != nil {
		return err
	}
	if o.short {
		cfg.Rounds, cfg.Commands, cfg.Starts, cfg.Restarts, cfg.Time, cfg.Idle = 3, 50, 100, 1, 4*time.Second, 12*time.Second
	}
	if *only != "" {
		cfg.Only = strings.Split(*only, ",")
	}
	if *only != "" || cfg.Profile != "" {
		o.page = "" // it holds whole results only
	}
	if cfg.Program, err = os.Executable(); err != nil {
		return err
	}
	place := machine()
	results, err := commands.Run(ctx, cfg, os.Stderr)
	if err != nil {
		return err
	}
	table, missed := results.Table()
	facts := fmt.Sprintf("%s; medians of %d rounds.", place, cfg.Rounds)
	err = o.publish("commands", facts+"\n"+table.Terminal(), "## Commands and sessions\n\n"+aboutCommands+facts+"\n\n"+table.Markdown())
	if err == nil && o.check && missed > 0 {
		err = fmt.Errorf("%w: %d of them", errMissed, missed)
	}
	return err
}

const aboutCommands = `` + "`scripts/bench commands`" + `. The coordinator is ` + "`muster up`" + ` with its store on disk; store off is the same code with the store in memory. In the rows about
commands and results the agents are written by hand and do no more than the protocol asks: they register, beat, and answer each command with its end alone and a result of 300 bytes, as a
real agent does when the program ends at once. NATS is nats-server with as many subscribers, which answer a request with 300 bytes and are written by hand in the same manner; they do
not beat. In all other rows the agents are simulated on real Dealers, and only register, beat and come back; the program is started by a real muster-agentd. Contestants take turns, one command each;
a ratio is the median over rounds of the ratio within a round; by CPU it is that of the CPU time of all their processes, which other work on the machine disturbs less. A program is started when exec has returned to the agent; after each start the disk is asked for one sync of a page. Memory is the growth of the resident set, after a garbage collection.
`
