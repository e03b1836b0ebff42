//go:build !long

package e2e

import "time"

// How much of a case the everyday run shows; see long_test.go.
const (
	unknownKeyFor        = 5 * time.Second  // C028
	noCoordinatorFor     = 10 * time.Second // C024
	resetRounds          = 5                // C043, of each of
	resetAgents          = 10
	commandsWhileItFlaps = 100 // C042
	cancelRounds         = 50  // C041
	chaosCommands        = 200
	chaosAgents          = 10
	chaosKills           = 3 // of the coordinator; each agent twice
	chaosPatience        = 2 * time.Minute
	oddSignalsFor        = 3 * time.Second // C030
	frozenAgents         = 30              // C021
	frozenFor            = 2 * time.Second
	clonesFor            = 10 * time.Second // C056
	churnConnections     = 3000             // C022
	stormAgents          = 200              // C023
	stormRealAgents      = 5
	stormOutage          = 5 * time.Second
	stormRestarts        = 2
)
