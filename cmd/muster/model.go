package main

import (
	"encoding/json"
	"time"
)

// What the subcommands read of the resources; the REST service shows more.

type agent struct {
	ID         string            `json:"id"`
	Status     string            `json:"status"`
	Type       string            `json:"type"`
	Tags       map[string]string `json:"tags"`
	Attributes struct {
		Version  string `json:"version"`
		IP       string `json:"ip"`
		Hostname string `json:"hostname"`
		OS       string `json:"os"`
		Arch     string `json:"arch"`
		PID      int    `json:"pid"`
	} `json:"attributes"`
	LastSeen     time.Time   `json:"last_seen"`
	StartupTime  time.Time   `json:"startup_time"`
	RegisterTime time.Time   `json:"register_time"`
	RunID        string      `json:"run_id"`
	Address      string      `json:"address"`
	CommandTypes []string    `json:"command_types"`
	Hooks        bool        `json:"hooks"` // it runs those of configs
	Maintenance  bool        `json:"maintenance"`
	Left         bool        `json:"left"` // it was stopped in order
	Groups       []string    `json:"groups"`
	Conflict     *conflict   `json:"conflict"`
	Plugins      []plugin    `json:"plugins"`
	Queue        *agentQueue `json:"queue"` // of one agent, not in the list
}

// conflict shows that two processes use one agent id.
type conflict struct {
	Address          string    `json:"address"`
	RefusedAddress   string    `json:"refused_address"`
	RefusedMachineID string    `json:"refused_machine_id"`
	Time             time.Time `json:"time"`
}

// state is the status, whether the agent was stopped, and whether it is held.
func (a agent) state() string {
	text := a.Status
	if a.Left {
		text += " (left)"
	}
	if a.Maintenance {
		text += " (maintenance)"
	}
	if a.Conflict != nil {
		text += " (conflict)"
	}
	return text
}

type plugin struct {
	Name        string `json:"name"`
	Version     string `json:"version"`
	Description string `json:"description"`
	Error       string `json:"error"`
}

type agentQueue struct {
	Waiting         int       `json:"waiting"`
	InFlight        int       `json:"in_flight"`
	OldestCommandID string    `json:"oldest_command_id"`
	LastRefusal     string    `json:"last_refusal"`
	LastRefusalTime time.Time `json:"last_refusal_time"`
}

type command struct {
	ID          string            `json:"id"`
	Type        string            `json:"type"`
	Name        string            `json:"name"`
	Input       json.RawMessage   `json:"input"`
	Target      selector          `json:"target"`
	Timeout     string            `json:"timeout"`
	ExpireTime  time.Time         `json:"expire_time"`
	Idempotent  bool              `json:"idempotent"`
	Labels      map[string]string `json:"labels"`
	WhenOffline string            `json:"when_offline"`
	Rollout     *rollout          `json:"rollout"`
	State       string            `json:"state"`
	StateReason string            `json:"state_reason"`
	Counts      counts            `json:"counts"`
	CreateTime  time.Time         `json:"create_time"`
	EndTime     time.Time         `json:"end_time"`
}

// ended says that nothing will change any more. The programs of a cancelled
// command may still run.
func (c command) ended() bool {
	return c.State == "DONE" || c.State == "CANCELLED" && c.Counts.open() == 0
}

// halted says that too many targets failed: nothing more is sent.
func (c command) halted() bool { return c.State == "HALTED" }

type counts struct {
	Total       int `json:"total"`
	Queued      int `json:"queued"`
	Sent        int `json:"sent"`
	Received    int `json:"received"`
	Running     int `json:"running"`
	Succeeded   int `json:"succeeded"`
	Failed      int `json:"failed"`
	TimedOut    int `json:"timed_out"`
	Interrupted int `json:"interrupted"`
	Rejected    int `json:"rejected"`
	Cancelled   int `json:"cancelled"`
	Expired     int `json:"expired"`
	Lost        int `json:"lost"`
}

// failures counts the targets that ran, or were refused, and did not succeed.
func (c counts) failures() int { return c.Failed + c.TimedOut + c.Interrupted + c.Rejected }

func (c counts) open() int { return c.Queued + c.flying() }

// flying counts the targets that were sent and are not final.
func (c counts) flying() int { return c.Sent + c.Received + c.Running }

type target struct {
	CommandID string          `json:"command_id"`
	AgentID   string          `json:"agent_id"`
	State     string          `json:"state"`
	ExitCode  *int            `json:"exit_code"`
	Signal    string          `json:"signal"`
	Reason    string          `json:"reason"`
	StartTime time.Time       `json:"start_time"`
	EndTime   time.Time       `json:"end_time"`
	Stdout    *output         `json:"stdout"`
	Stderr    *output         `json:"stderr"`
	Result    json.RawMessage `json:"result"`
}

type output struct {
	Size      float64 `json:"size"`
	Kept      int     `json:"kept"`
	Truncated bool    `json:"truncated"`
}

func (t target) final() bool {
	switch t.State {
	case "QUEUED", "SENT", "RECEIVED", "RUNNING":
		return false
	}
	return true
}

type key struct {
	ID        string    `json:"id"`
	PublicKey string    `json:"public_key"`
	State     string    `json:"state"`
	AgentID   string    `json:"agent_id"`
	Address   string    `json:"address"`
	FirstSeen time.Time `json:"first_seen"`
}

type event struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	Time    time.Time `json:"time"`
	Agent   *agent    `json:"agent"`
	Command *command  `json:"command"`
	Target  *target   `json:"target"`

	Group        *agentGroup    `json:"group"`
	Config       *config        `json:"config"`
	ConfigStatus *configStatus  `json:"config_status"`
	Rollout      *configRollout `json:"rollout"`
	Deleted      bool           `json:"deleted"` // the resource is gone
}
