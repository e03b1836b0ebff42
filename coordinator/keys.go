package coordinator

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/musterhq/muster/coordinator/store"
)

// Every key the coordinator uses in the store.
//
//	space history (watched: its commit order is what the ledger follows)
//	  cmd/ULID             Command, as it was submitted
//	  open/ULID            nothing; there while the command is not ended
//	  draft/ULID           nothing; there while target lists are written before their command
//	  sum/ULID             CommandSummary, once ended
//	  ctl/ULID             CommandControl, when somebody decided about it
//	  idem/HASH            Idempotency, by token, operation and key
//	  sent/ULID/n          SentMarks, written before the first send
//	  res/ULID/n           ResultPack: Targets in their final state; the first one wins
//	  index/ULID/n         ResultIndex, of a command that has ended: where to find them
//	  late/ULID/AGENT      Target that came after a final state the coordinator had set
//	space bulk
//	  targets/ULID/n       TargetList, of a command or a rollout
//	  out/ULID/AGENT/S/off kept output of stream S from offset off
//	  outcome/ULID/n       RolloutOutcome, of a rollout that goes back or has ended
//	  content/NAME/n/i     the content of version n of a config, in pieces
//	space fleet
//	  agent/ID             Agent, written when it changes; last_seen on transitions only
//	  journal/ID           JournalPosition that the agent told last
//	  token/NAME           Token
//	  key/FINGERPRINT      Key that was approved or revoked
//	  held/ID              AgentConfigs that the agent told last
//	space config (watched: what agents shall hold follows it)
//	  group/NAME           Group, without size
//	  cfg/NAME             Config, the head
//	  gone/NAME            Config that was deleted, as it was last
//	  ver/NAME/n           ConfigVersion, without content
//	  staged/NAME/n        nothing; there while content is written before its version
//	  rollout/ULID         ConfigRollout
//	  offered/ULID/n       RolloutOffers, written before the offers
const (
	spaceHistory store.Space = "history"
	spaceBulk    store.Space = "bulk"
	spaceFleet   store.Space = "fleet"
	spaceConfig  store.Space = "config"
)

// Spaces is what the coordinator's store must be opened with.
var Spaces = []store.SpaceDef{
	{Name: spaceHistory, Watched: true},
	{Name: spaceBulk},
	{Name: spaceFleet},
	{Name: spaceConfig, Watched: true},
}

const (
	cmdPrefix   = "cmd/"
	openPrefix  = "open/"
	draftPrefix = "draft/"
	sumPrefix   = "sum/"
	ctlPrefix   = "ctl/"
	idemPrefix  = "idem/"
	sentPrefix  = "sent/"
	resPrefix   = "res/"
	indexPrefix = "index/"
	latePrefix  = "late/"
	agentPrefix = "agent/"
	tokenPrefix = "token/"
	keyPrefix   = "key/"
	heldPrefix  = "held/"

	groupPrefix   = "group/"
	cfgPrefix     = "cfg/"
	gonePrefix    = "gone/"
	verPrefix     = "ver/"
	stagedPrefix  = "staged/"
	rolloutPrefix = "rollout/"
	offeredPrefix = "offered/"
	contentPrefix = "content/"
	outcomePrefix = "outcome/"

	journalPrefix = "journal/"
	targetsPrefix = "targets/"
	outputPrefix  = "out/"
)

func cmdKey(id string) []byte            { return []byte(cmdPrefix + id) }
func openKey(id string) []byte           { return []byte(openPrefix + id) }
func draftKey(id string) []byte          { return []byte(draftPrefix + id) }
func sumKey(id string) []byte            { return []byte(sumPrefix + id) }
func ctlKey(id string) []byte            { return []byte(ctlPrefix + id) }
func sentKey(id string, n int) []byte    { return fmt.Appendf(nil, "%s%s/%08x", sentPrefix, id, n) }
func packKey(id string, n uint32) []byte { return fmt.Appendf(nil, "%s%s/%08x", resPrefix, id, n) }
func indexKey(id string, n int) []byte   { return fmt.Appendf(nil, "%s%s/%08x", indexPrefix, id, n) }
func lateKey(id, agent string) []byte    { return []byte(latePrefix + id + "/" + agent) }
func targetsKey(id string, n int) []byte { return fmt.Appendf(nil, "%s%s/%08x", targetsPrefix, id, n) }
func agentKey(id string) []byte          { return []byte(agentPrefix + id) }
func journalKey(id string) []byte        { return []byte(journalPrefix + id) }
func tokenKey(name string) []byte        { return []byte(tokenPrefix + name) }
func heldKey(id string) []byte           { return []byte(heldPrefix + id) }
func groupKey(name string) []byte        { return []byte(groupPrefix + name) }
func cfgKey(name string) []byte          { return []byte(cfgPrefix + name) }
func goneKey(name string) []byte         { return []byte(gonePrefix + name) }
func verKey(name string, n int32) []byte { return fmt.Appendf(nil, "%s%s/%08x", verPrefix, name, n) }
func rolloutKey(id string) []byte        { return []byte(rolloutPrefix + id) }
func offeredKey(id string, n int) []byte { return fmt.Appendf(nil, "%s%s/%08x", offeredPrefix, id, n) }
func outcomeKey(id string, n int) []byte { return fmt.Appendf(nil, "%s%s/%08x", outcomePrefix, id, n) }
func keyKey(id string) []byte            { return []byte(keyPrefix + id) }

func stagedKey(name string, n int32) []byte {
	return fmt.Appendf(nil, "%s%s/%08x", stagedPrefix, name, n)
}

func contentKey(name string, n int32, i int) []byte {
	return fmt.Appendf(nil, "%s%s/%08x/%08x", contentPrefix, name, n, i)
}

func outKey(id, agent string, stream, offset uint32) []byte {
	return fmt.Appendf(outPrefix(id, agent, stream), "%08x", offset)
}

func outPrefix(id, agent string, stream uint32) []byte {
	return fmt.Appendf(nil, "%s%s/%s/%d/", outputPrefix, id, agent, stream)
}

// splitVersion cuts "prefix/NAME/n" after the prefix into its two parts.
func splitVersion(key []byte, prefix string) (name string, n int32, ok bool) {
	name, hex := splitKey(key, prefix)
	v, err := strconv.ParseInt(hex, 16, 32)
	return name, int32(v), err == nil
}

// splitKey cuts "prefix/ULID/rest" after the prefix into its two parts.
func splitKey(key []byte, prefix string) (id, rest string) {
	id, rest, _ = strings.Cut(strings.TrimPrefix(string(key), prefix), "/")
	return id, rest
}
