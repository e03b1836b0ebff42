package plugin

import (
	"cmp"
	"time"
)

// Program is one program to run. Only Args is required; the zero value of each
// other field is its default.
type Program struct {
	Path  string   // the executable ("": Args[0]); without a slash it is looked up in Env's PATH
	Args  []string // with the program's name first
	Env   []string // all of it, as name=value (nil: Environ())
	Dir   string   // working directory ("/")
	Stdin []byte   // nil: /dev/null

	Timeout   time.Duration // 0: no limit
	Grace     time.Duration // between TERM and KILL (10s)
	Drain     time.Duration // how long output is read after the end while a pipe is held open (1s)
	OutputCap int           // bytes kept of each stream (1 MiB)

	// Marker is a "NAME=value" that no other program has. It is added to the
	// environment, and processes that carry it are killed when the program is
	// stopped, wherever they moved to.
	Marker string

	// Await is called once, when all is ready for the process to be made, so that
	// what has to precede it may go on meanwhile. It may block. After an error no
	// process is made, and the program counts as Stopped.
	Await func() error
	// Started is called once, after the process was made. It may run already.
	Started func(Group)
	// Stdout is called with each piece of standard output in order, from one
	// goroutine at a time. It must not keep the slice or block.
	Stdout func([]byte)
	// Live is called once, before anything was read, with the heads of both
	// streams; Grown each time when one of them has grown, from any goroutine.
	// Neither may block. They let output be passed on while the program runs.
	Live  func(stdout, stderr Head)
	Grown func()
}

func (p Program) withDefaults() Program {
	if p.Path == "" && len(p.Args) > 0 {
		p.Path = p.Args[0]
	}
	if p.Env == nil {
		p.Env = Environ()
	}
	if p.Marker != "" {
		p.Env = append(p.Env[:len(p.Env):len(p.Env)], p.Marker)
	}
	p.Dir = cmp.Or(p.Dir, "/")
	p.Grace = cmp.Or(p.Grace, 10*time.Second)
	p.Drain = cmp.Or(p.Drain, time.Second)
	p.OutputCap = cmp.Or(p.OutputCap, 1<<20)
	return p
}

// Cause says what ended a program.
type Cause int

const (
	Exited   Cause = iota // by itself, or by a signal that was not ours
	TimedOut              // stopped because its time was up
	Stopped               // stopped, or not made, because the context ended; or not made because Await failed
)

// Outcome is how a run ended.
type Outcome struct {
	StartErr *StartError // not nil: it never ran; the rest is empty
	Cause    Cause
	ExitCode int    // -1 when a signal ended it
	Signal   string // that ended it, such as "SIGSEGV"
	Stuck    bool   // it outlived KILL (a hung file system does that); nobody waits for it any more

	Start, End     time.Time
	Stdout, Stderr Output
}

// OK reports whether the program ran to its own end with exit code 0.
func (o *Outcome) OK() bool {
	return o.StartErr == nil && o.Cause == Exited && o.ExitCode == 0 && !o.Stuck
}
