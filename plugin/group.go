package plugin

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Group names a process group so that it can be found again after a restart
// of the agent, and never taken for another one that got the same number.
type Group struct {
	ID         int    // of the group: its leader's process id
	StartTicks uint64 // of the leader, in clock ticks since boot
	BootID     string // of the boot it belongs to
}

// BootID is a word that is new with each boot of the machine ("" if the
// system has none).
var BootID = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
})

func groupOf(pid int) Group {
	g := Group{ID: pid, BootID: BootID()}
	if s, err := readStat(pid); err == nil {
		g.StartTicks = s.start
	}
	return g
}

// KillLeft ends what an earlier agent left of a run: the group if its leader
// is still the process it was, and every process that carries the marker. It
// waits up to the limit for them to be gone and reports how many are not.
func KillLeft(g Group, marker string, limit time.Duration) (left int) {
	end := time.Now().Add(limit)
	for {
		left = 0
		if g.ID > 1 && g.BootID == BootID() {
			if s, err := readStat(g.ID); err == nil && s.start == g.StartTicks {
				_ = unix.Kill(-g.ID, unix.SIGKILL)
				left += len(members(g.ID))
			}
		}
		left += KillMarked(marker)
		if left == 0 || time.Now().After(end) {
			return left
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// KillMarked sends KILL to every process, this one excepted, that has all the
// markers in its environment, and returns how many it found.
func KillMarked(markers ...string) (found int) {
	if len(markers) == 0 || slices.Contains(markers, "") {
		return 0
	}
	for _, pid := range processes() {
		if pid == os.Getpid() {
			continue
		}
		if !carries(pid, markers) {
			continue
		}
		// Looked at again under a handle: what is killed is what was looked at,
		// even if the number is used again in between.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if carries(pid, markers) {
			found++
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		_ = unix.Close(fd)
	}
	return found
}

func carries(pid int, markers []string) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	entries := strings.Split(string(env), "\x00")
	for _, m := range markers {
		if !slices.Contains(entries, m) {
			return false
		}
	}
	return true
}

// members are the living processes of a group; a zombie is not one.
func members(pgid int) (pids []int) {
	for _, pid := range processes() {
		if s, err := readStat(pid); err == nil && s.pgrp == pgid && s.state != 'Z' && s.state != 'X' {
			pids = append(pids, pid)
		}
	}
	return pids
}

func processes() (pids []int) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

type stat struct {
	state byte
	pgrp  int
	start uint64
}

// readStat reads /proc/PID/stat. The second field is the program's name and
// may hold anything, brackets and spaces too: the fields are counted from the
// last bracket on.
func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return stat{}, fmt.Errorf("process %d: stat has %d fields", pid, len(f))
	}
	s := stat{state: f[0][0]}
	s.pgrp, _ = strconv.Atoi(f[2])
	s.start, err = strconv.ParseUint(f[19], 10, 64)
	return s, err
}
