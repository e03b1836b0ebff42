package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killWait is how long a program may take to die of KILL before it is given up.
const killWait = 2 * time.Second

// leaveWait is how long after its leader's end a process may still leave the
// group: "setsid daemon &" at the end of a script has only just been forked.
const leaveWait = 100 * time.Millisecond

// Run runs the program and returns when it has ended and all that Run started
// is gone. It never returns later than the timeout, plus grace, plus drain,
// plus 2 s for a program that even KILL does not end; and before the program is
// made it waits as long as Await does.
func Run(ctx context.Context, p Program) Outcome {
	p = p.withDefaults()
	path, bad := p.check()
	if bad != nil {
		return Outcome{StartErr: bad}
	}
	r := &run{p: p, exited: make(chan struct{})}
	failed := func(err error) Outcome {
		r.close()
		return Outcome{StartErr: newStartError(path, p.Dir, err)}
	}
	if err := r.open(); err != nil {
		return failed(err)
	}
	if !r.mayStart(ctx) {
		r.close()
		now := time.Now()
		return Outcome{Cause: Stopped, ExitCode: -1, Start: now, End: now} // nothing was run
	}
	if err := r.start(path); err != nil {
		return failed(err)
	}
	began := time.Now()
	r.closeTheirs()
	if p.Started != nil {
		p.Started(groupOf(r.proc.Pid))
	}
	r.pump()
	cause := r.await(ctx)
	o := r.reap()
	if cause == Exited {
		r.killLeft()
	}
	o.Cause, o.Start, o.End = cause, began, time.Now()
	o.Stdout, o.Stderr = r.drain()
	return o
}

// run is one process and the goroutines at its pipes.
type run struct {
	p       Program
	proc    *os.Process
	exited  chan struct{} // closed when the leader ended; it is not reaped then
	in      *os.File      // nil: the program got /dev/null
	out     *os.File
	err     *os.File
	theirs  []*os.File // the program's ends of the pipes, until it has them
	stdout  *capture
	stderr  *capture
	writers sync.WaitGroup
	readers sync.WaitGroup
}

// open makes the files that the program gets, and our ends of them.
func (r *run) open() error {
	if r.p.Stdin == nil {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return err
		}
		r.theirs = append(r.theirs, null)
	} else {
		rd, wr, err := os.Pipe()
		if err != nil {
			return err
		}
		r.in, r.theirs = wr, append(r.theirs, rd)
	}
	for _, ours := range []**os.File{&r.out, &r.err} {
		rd, wr, err := os.Pipe()
		if err != nil {
			return err
		}
		*ours, r.theirs = rd, append(r.theirs, wr)
	}
	return nil
}

// mayStart waits for what has to precede the process; false: it is not to be made.
func (r *run) mayStart(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	if r.p.Await != nil && r.p.Await() != nil {
		return false
	}
	return ctx.Err() == nil
}

func (r *run) start(path string) (err error) {
	r.proc, err = os.StartProcess(path, r.p.Args, &os.ProcAttr{
		Dir:   r.p.Dir,
		Env:   r.p.Env,
		Files: r.theirs,
		// A session is a process group too, and has no terminal to ask for passwords on.
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	return err
}

func (r *run) closeTheirs() {
	for _, f := range r.theirs {
		f.Close()
	}
	r.theirs = nil
}

// close lets go of all files of a program that was not started.
func (r *run) close() {
	r.closeTheirs()
	for _, f := range []*os.File{r.in, r.out, r.err} {
		f.Close() // of nil it does nothing
	}
}

// pump starts the goroutines that feed the program, read it and wait for it.
func (r *run) pump() {
	r.stdout, r.stderr = newCapture(r.p.OutputCap), newCapture(r.p.OutputCap)
	r.stdout.grown, r.stderr.grown = r.p.Grown, r.p.Grown
	if r.p.Live != nil {
		r.p.Live(Head{r.stdout}, Head{r.stderr})
	}
	if r.in != nil {
		r.writers.Go(func() {
			// A program that closes its input early does so on purpose: no failure.
			_, _ = r.in.Write(r.p.Stdin)
			r.in.Close()
		})
	}
	r.readers.Go(func() { read(r.out, r.stdout, r.p.Stdout) })
	r.readers.Go(func() { read(r.err, r.stderr, nil) })
	go func() {
		defer close(r.exited)
		// WNOWAIT leaves a zombie: as long as it is there, its number, which is
		// the group's too, cannot become somebody else's while stop uses it.
		for {
			err := unix.Waitid(unix.P_PID, r.proc.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
}

func read(f *os.File, c *capture, tap func([]byte)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			_, _ = c.Write(buf[:n])
			if tap != nil {
				tap(buf[:n])
			}
		}
		if err != nil {
			return
		}
	}
}

// await returns when the program has ended, by itself or by our hand.
func (r *run) await(ctx context.Context) Cause {
	var late <-chan time.Time
	if r.p.Timeout > 0 {
		t := time.NewTimer(r.p.Timeout)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-r.exited:
		return Exited
	case <-late:
		r.stop()
		return TimedOut
	case <-ctx.Done():
		r.stop()
		return Stopped
	}
}

// stop ends the whole group: politely, then not.
func (r *run) stop() {
	r.signal(unix.SIGTERM)
	r.signal(unix.SIGCONT) // a stopped process sees TERM only when it goes on
	if !r.gone(r.p.Grace) {
		r.signal(unix.SIGKILL)
		r.gone(killWait)
	}
	for range 100 { // a process that forks faster than it is found is not followed for ever
		if KillMarked(r.p.Marker) == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// gone waits until the leader has ended and its group is empty.
func (r *run) gone(limit time.Duration) bool {
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-r.exited:
	case <-late.C:
		return false
	}
	for pause := 5 * time.Millisecond; len(members(r.proc.Pid)) > 0; pause = min(2*pause, 100*time.Millisecond) {
		select {
		case <-late.C:
			return false
		case <-time.After(pause):
		}
	}
	return true
}

// killLeft ends what the program left in its group. The leader is reaped: its
// number stays the group's own as long as there is a member, and numbers do
// not come round within leaveWait.
func (r *run) killLeft() {
	for end := time.Now().Add(leaveWait); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if unix.Kill(-r.proc.Pid, 0) != nil {
			return
		}
	}
	r.signal(unix.SIGKILL)
}

// signal reaches the whole group.
func (r *run) signal(s unix.Signal) { _ = unix.Kill(-r.proc.Pid, s) }

func (r *run) reap() Outcome {
	o := Outcome{ExitCode: -1}
	select {
	case <-r.exited:
	default:
		o.Stuck = true
		go func() { // the kernel will let it go some day; then it must not stay a zombie
			<-r.exited
			_, _ = r.proc.Wait()
		}()
		return o
	}
	state, err := r.proc.Wait()
	if err != nil {
		return o
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		o.Signal = signalName(ws.Signal())
		return o
	}
	o.ExitCode = state.ExitCode()
	return o
}

// drain reads what is still in the pipes, for as long as Drain if somebody
// holds them open, and ends every goroutine at them.
func (r *run) drain() (stdout, stderr Output) {
	if r.in != nil {
		r.in.Close()
	}
	end := time.Now().Add(r.p.Drain)
	for _, f := range []*os.File{r.out, r.err} {
		_ = f.SetReadDeadline(end)
	}
	r.readers.Wait()
	r.writers.Wait()
	r.out.Close()
	r.err.Close()
	return r.stdout.output(), r.stderr.output()
}

func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(s))
}
