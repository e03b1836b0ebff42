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
)
