//go:build long

package e2e

import "time"

// The cases in full.
const (
	unknownKeyFor        = time.Minute      // C028
	noCoordinatorFor     = 10 * time.Minute // C024
	resetRounds          = 10               // C043, of each of
	resetAgents          = 20
	commandsWhileItFlaps = 1000 // C042
	cancelRounds         = 500  // C041
	chaosCommands        = 1000
	chaosAgents          = 50
	chaosKills           = 10 // of the coordinator; each agent twice
	chaosPatience        = 15 * time.Minute
	oddSignalsFor        = 10 * time.Second // C030
	frozenAgents         = 100              // C021
	frozenFor            = 10 * time.Minute
	clonesFor            = 10 * time.Minute // C056
	churnConnections     = 50000            // C022
	stormAgents          = 2000             // C023
	stormRealAgents      = 20
	stormOutage          = time.Minute
	stormRestarts        = 5
)
