package main

import (
	"strings"
	"testing"

	"github.com/musterhq/muster/cmd/internal/arguments"
	"github.com/musterhq/muster/cmd/internal/release"
)

func TestHelpTellsOneDefaultAndTheVersion(t *testing.T) {
	var out strings.Builder
	app := newApp(&out, &out)
	for _, flag := range arguments.Unclear("muster-agentd", app.Flags, nil) {
		t.Errorf("two defaults: %s", flag)
	}
	if err := app.RunContext(t.Context(), []string{"muster-agentd", "--version"}); err != nil || out.String() != "muster-agentd version "+release.Version()+"\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
