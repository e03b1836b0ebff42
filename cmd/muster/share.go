package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Usage: "more than half of the fleet is meant", EnvVars: []string{"MUSTER_YES"}}
}

func dryRunFlag(usage string) cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Usage: usage, EnvVars: []string{"MUSTER_DRY_RUN"}}
}

// smallFleet is one in which half of the agents are few.
const smallFleet = 10

func isLargeShare(n, fleet int) bool { return fleet > smallFleet && 2*n > fleet }

// largeShare refuses what is for more than half of a fleet that is not small.
func largeShare(yes bool, n, fleet int) error {
	if yes || !isLargeShare(n, fleet) {
		return nil
	}
	return usagef("this is for %d of %d agents; say --yes if you mean it, or --dry-run to see them", n, fleet)
}

// namesOf lists the first of many names.
func namesOf(names []string) string {
	const most = 20
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}

// everybody points out an expression that is true of each agent: it may have
// been meant otherwise. It is "" where that is said on purpose.
func everybody(where string, total, fleet int) string {
	if where == "" || where == "true" || fleet < 2 || total < fleet {
		return ""
	}
	return fmt.Sprintf("note: all %d agents are members; is the expression what you mean?", fleet)
}
