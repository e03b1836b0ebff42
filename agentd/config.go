package agentd

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster/plugin"
)

// Config is how an agent is set up. Only Dir is required; the zero value of
// each other field is its default, given in brackets.
type Config struct {
	Dir       string            // data folder, made if it is missing
	ID        string            // (what an earlier start stored, else the host name)
	Type      string            // (muster-agentd)
	Version   string            // of the agent software
	Tags      map[string]string //
	PluginDir string            // (no plugins)
	Allow     []string          // what this agent must allow: the built-in type exec, and the hooks of configs (none)

	ConfigRoot string // folder below which configs are put; it must exist, and not hold Dir (Dir/configs, made if missing)

	StopGrace time.Duration // between TERM and KILL of a program (10s)
	Parallel  int           // programs at once (4)
	Queue     int           // commands that wait to be started; more are answered Busy (1,000)
	Held      int           // commands in the journal that are not settled; more are answered Busy (10,000)
	OutputCap int           // bytes kept of each stream (1 MiB)

	Log     *slog.Logger          // (discard)
	Metrics prometheus.Registerer // where counters are registered; they count without it (nil)

	clock  clock         // (the machine's)
	window int           // settled ids that are remembered (10,000)
	steps  func(string)  // called at each step of a config (nil)
	retry  time.Duration // after the first attempt of a config that failed (5s)
	look   time.Duration // how often the plugin folder is looked at (2s)
}

// Limits of what every coordinator takes.
const (
	maxTags     = 256
	maxTagName  = 128
	maxTagValue = 1024
	maxTagBytes = 16 << 10 // all together
)

func (c Config) withDefaults() Config {
	c.Type = cmp.Or(c.Type, "muster-agentd")
	c.StopGrace = cmp.Or(c.StopGrace, 10*time.Second)
	c.Parallel = cmp.Or(c.Parallel, 4)
	c.Queue = cmp.Or(c.Queue, 1000)
	c.Held = cmp.Or(c.Held, 10_000)
	c.OutputCap = cmp.Or(c.OutputCap, 1<<20)
	c.window = cmp.Or(c.window, 10_000)
	c.retry = cmp.Or(c.retry, firstRetry)
	c.look = cmp.Or(c.look, 2*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.clock.boot == nil {
		c.clock = machineClock()
	}
	return c
}

func (c Config) check() error {
	if c.Dir == "" {
		return fmt.Errorf("agent: no data folder given")
	}
	if err := checkTags(c.Tags); err != nil {
		return err
	}
	for _, name := range c.Allow {
		if name != execType && name != hooksAllowed {
			return fmt.Errorf("agent: --allow %s: only %s and %s can be allowed", name, execType, hooksAllowed)
		}
	}
	if c.PluginDir != "" {
		if _, err := plugin.Folder(c.PluginDir).Types(); err != nil {
			return err
		}
	}
	return nil
}

func checkTags(tags map[string]string) error {
	if len(tags) > maxTags {
		return fmt.Errorf("agent: %d tags, at most %d", len(tags), maxTags)
	}
	size := 0
	for k, v := range tags {
		switch {
		case k == "" || len(k) > maxTagName || len(v) > maxTagValue:
			return fmt.Errorf("agent: tag %.200q: want a name of 1 to %d bytes and a value of at most %d", k, maxTagName, maxTagValue)
		case !utf8.ValidString(k + v):
			return fmt.Errorf("agent: tag %q: not UTF-8", k)
		}
		size += len(k) + len(v)
	}
	if size > maxTagBytes {
		return fmt.Errorf("agent: tags of %d bytes, at most %d", size, maxTagBytes)
	}
	return nil
}
