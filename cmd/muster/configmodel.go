package main

import (
	"fmt"
	"net/url"
	"strings"
	"time"
)

// What the subcommands read and write of groups, configs and rollouts.

type agentGroup struct {
	Name        string    `json:"name"`
	Description string    `json:"description"`
	Where       string    `json:"where"`
	Agents      []string  `json:"agents"`
	Size        int       `json:"size"`
	CreateTime  time.Time `json:"create_time"`
	UpdateTime  time.Time `json:"update_time"`
	ETag        string    `json:"etag"`
}

// groupBody is what an operator sets of a group; a preview has its name in it.
type groupBody struct {
	Name        string   `json:"name,omitempty" yaml:"name"`
	Description string   `json:"description,omitempty" yaml:"description"`
	Where       string   `json:"where,omitempty" yaml:"where"`
	Agents      []string `json:"agents,omitempty" yaml:"agents"`
}

type groupPreview struct {
	Total      int      `json:"total"`
	Fleet      int      `json:"fleet"`
	AgentIDs   []string `json:"agent_ids"`
	Joining    []string `json:"joining"`
	Leaving    int      `json:"leaving"`
	LeavingIDs []string `json:"leaving_ids"` // the first of them
	Configs    []string `json:"configs"`     // that the group gives its members, the first of them
	NextToken  string   `json:"next_page_token,omitempty"`
}

type config struct {
	Name          string        `json:"name"`
	Kind          string        `json:"kind"`
	Description   string        `json:"description"`
	Bindings      []binding     `json:"bindings"`
	LatestVersion int           `json:"latest_version"`
	CreateTime    time.Time     `json:"create_time"`
	UpdateTime    time.Time     `json:"update_time"`
	ETag          string        `json:"etag"`
	RolloutID     string        `json:"rollout_id"`
	Counts        *configCounts `json:"counts"`
}

// configBody is what an operator sets of a config; a preview has its name in it.
type configBody struct {
	Name        string    `json:"name,omitempty"`
	Kind        string    `json:"kind,omitempty"`
	Description string    `json:"description,omitempty"`
	Bindings    []binding `json:"bindings,omitempty"`
}

type binding struct {
	Fleet   bool   `json:"fleet,omitempty"`
	Group   string `json:"group,omitempty"`
	Agent   string `json:"agent,omitempty"`
	Version int    `json:"version,omitempty"`
}

// scope is the binding without its version.
func (b binding) scope() binding {
	b.Version = 0
	return b
}

func (b binding) String() string {
	text := "fleet"
	switch {
	case b.Group != "":
		text = "group " + b.Group
	case b.Agent != "":
		text = "agent " + b.Agent
	}
	if b.Version != 0 {
		text += fmt.Sprintf(" version %d", b.Version)
	}
	return text
}

func bindingList(bindings []binding) string {
	words := make([]string, len(bindings))
	for i, b := range bindings {
		words[i] = b.String()
	}
	return strings.Join(words, ", ")
}

// scopesOf lists for whom a version is wanted.
func (c config) scopesOf(version int) string {
	var scopes []binding
	for _, b := range c.Bindings {
		if b.Version == version {
			scopes = append(scopes, b.scope())
		}
	}
	return bindingList(scopes)
}

type configCounts struct {
	Total    int `json:"total"`
	Applied  int `json:"applied"`
	Applying int `json:"applying"`
	Failed   int `json:"failed"`
	Waiting  int `json:"waiting"`
}

func (c *configCounts) String() string {
	if c == nil {
		return ""
	}
	return listOf([]counted{{"applied", c.Applied}, {"applying", c.Applying}, {"failed", c.Failed}, {"waiting", c.Waiting}})
}

type configVersion struct {
	Config     string    `json:"config"`
	Version    int       `json:"version"`
	Size       int       `json:"size"`
	SHA256     string    `json:"sha256"`
	File       fileSpec  `json:"file"`
	Note       string    `json:"note"`
	CreateTime time.Time `json:"create_time"`
}

// fileSpec says where the content goes on an agent, and who is asked about it.
type fileSpec struct {
	Path      string   `json:"path,omitempty" yaml:"path"`
	Mode      string   `json:"mode,omitempty" yaml:"mode"`
	CheckCmd  []string `json:"check_cmd,omitempty" yaml:"check_cmd"`
	ReloadCmd []string `json:"reload_cmd,omitempty" yaml:"reload_cmd"`
	Timeout   string   `json:"timeout,omitempty" yaml:"timeout"`
}

func (f fileSpec) empty() bool {
	return f.Path == "" && f.Mode == "" && f.Timeout == "" && len(f.CheckCmd) == 0 && len(f.ReloadCmd) == 0
}

// versionBody is a new version.
type versionBody struct {
	Content []byte    `json:"content"`
	File    *fileSpec `json:"file,omitempty"`
	Note    string    `json:"note,omitempty"`
}

type configStatus struct {
	Kind           string `json:"kind"`
	Name           string `json:"name"`
	Version        int    `json:"version"`
	Status         string `json:"status"`
	RunningVersion int    `json:"running_version"`
	Reason         string `json:"reason"`
	AgentID        string `json:"agent_id"`
	WantedVersion  int    `json:"wanted_version"`
}

type configDiff struct {
	Text        string   `json:"text"`
	Binary      bool     `json:"binary"`
	Equal       bool     `json:"equal"`
	FileChanges []string `json:"file_changes"`
}

type configPreview struct {
	Total     int            `json:"total"`
	Fleet     int            `json:"fleet"`
	Changed   int            `json:"changed"`
	Changes   []configChange `json:"changes"`
	NextToken string         `json:"next_page_token,omitempty"`
}

type configChange struct {
	AgentID     string `json:"agent_id"`
	FromVersion int    `json:"from_version"`
	ToVersion   int    `json:"to_version"`
}

type configRollout struct {
	ID          string        `json:"id"`
	Config      string        `json:"config"`
	Version     int           `json:"version"`
	Groups      []string      `json:"groups"`
	Plan        *rollout      `json:"plan"`
	KeepOnHalt  bool          `json:"keep_on_halt"`
	State       string        `json:"state"`
	StateReason string        `json:"state_reason"`
	Counts      rolloutCounts `json:"counts"`
	CreateTime  time.Time     `json:"create_time"`
	EndTime     time.Time     `json:"end_time"`
	Note        string        `json:"note"`
}

// ended says that nothing is offered any more and nothing goes back by itself.
func (r configRollout) ended() bool {
	switch r.State {
	case "DONE", "ABORTED", "ROLLED_BACK", "SUPERSEDED":
		return true
	}
	return r.State == "HALTED" && r.KeepOnHalt
}

type rolloutCounts struct {
	Total      int `json:"total"`
	Waiting    int `json:"waiting"`
	Offered    int `json:"offered"`
	Applied    int `json:"applied"`
	Failed     int `json:"failed"`
	Vanished   int `json:"vanished"`
	RolledBack int `json:"rolled_back"`
	Skipped    int `json:"skipped"`
}

func (c rolloutCounts) unreached() int { return c.Waiting + c.Offered + c.Skipped }

func (c rolloutCounts) String() string {
	return listOf([]counted{{"waiting", c.Waiting}, {"offered", c.Offered}, {"applied", c.Applied}, {"failed", c.Failed}, {"vanished", c.Vanished}, {"rolled back", c.RolledBack}, {"skipped", c.Skipped}})
}

// rolloutBody starts a rollout.
type rolloutBody struct {
	Version    int      `json:"version"`
	Groups     []string `json:"groups,omitempty"`
	Plan       *rollout `json:"plan,omitempty"`
	KeepOnHalt bool     `json:"keep_on_halt,omitempty"`
	Note       string   `json:"note,omitempty"`
}

type rolloutTarget struct {
	AgentID         string `json:"agent_id"`
	State           string `json:"state"`
	PreviousVersion int    `json:"previous_version"`
	Reason          string `json:"reason"`
	RolledBack      bool   `json:"rolled_back"`
}

func groupPath(name, rest string) string  { return "/v1/groups/" + url.PathEscape(name) + rest }
func configPath(name, rest string) string { return "/v1/configs/" + url.PathEscape(name) + rest }
func rolloutPath(id, rest string) string  { return "/v1/rollouts/" + url.PathEscape(id) + rest }
