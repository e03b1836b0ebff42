package agentd

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/plugin"
)

// clock measures how long a command has been here. The boot-time clock goes on
// through sleep and is set by nobody; only over a reboot is the wall clock used.
type clock struct {
	bootID string
	boot   func() time.Duration // since boot
}

func machineClock() clock {
	return clock{bootID: plugin.BootID(), boot: func() time.Duration {
		var ts unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
		return time.Duration(ts.Nano())
	}}
}

// stamp is a moment that keeps its meaning in the journal.
type stamp struct {
	BootID string        `json:"boot_id,omitempty"`
	Boot   time.Duration `json:"boot,omitempty"`
	Wall   time.Time     `json:"wall,omitzero"`
}

func (c clock) now() stamp {
	return stamp{BootID: c.bootID, Boot: c.boot(), Wall: time.Now().UTC()}
}

// since is the time that has passed since s, never less than nothing.
func (c clock) since(s stamp) time.Duration {
	if s.BootID == c.bootID {
		return max(0, c.boot()-s.Boot)
	}
	return max(0, time.Since(s.Wall))
}
