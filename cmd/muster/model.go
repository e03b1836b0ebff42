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
	LastSeen     time.Time `json:"last_seen"`
	StartupTime  time.Time `json:"startup_time"`
	RegisterTime time.Time `json:"register_time"`
	RunID        string    `json:"run_id"`
	Address      string    `json:"address"`
	CommandTypes []string  `json:"command_types"`
}

type command struct {
	ID         string          `json:"id"`
	Type       string          `json:"type"`
	Name       string          `json:"name"`
	Input      json.RawMessage `json:"input"`
	Timeout    string          `json:"timeout"`
	ExpireTime time.Time       `json:"expire_time"`
	State      string          `json:"state"`
	Counts     counts          `json:"counts"`
	CreateTime time.Time       `json:"create_time"`
	EndTime    time.Time       `json:"end_time"`
}

// ended says that nothing will change any more.
func (c command) ended() bool { return c.State == "DONE" || c.State == "CANCELLED" }

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

func (c counts) open() int { return c.Queued + c.Sent + c.Received + c.Running }

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
}
