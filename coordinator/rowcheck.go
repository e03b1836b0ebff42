package coordinator

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// rowForms says what each kind of row must be; see keys.go.
var rowForms = map[store.Space]map[string]rowForm{
	spaceHistory: {
		cmdPrefix:   {ofCommand, message[musterv1.Command]},
		openPrefix:  {ofCommand, nothing},
		draftPrefix: {ofCommand, nothing},
		sumPrefix:   {ofCommand, message[musterv1.CommandSummary]},
		ctlPrefix:   {ofCommand, message[musterv1.CommandControl]},
		idemPrefix:  {ofAnything, message[musterv1.Idempotency]},
		sentPrefix:  {ofCommandPart, message[musterv1.SentMarks]},
		resPrefix:   {ofCommandPart, resultPack},
		indexPrefix: {ofCommandPart, message[musterv1.ResultIndex]},
		latePrefix:  {ofCommandAnd, message[musterv1.Target]},
	},
	spaceBulk: {
		targetsPrefix: {ofCommandPart, message[musterv1.TargetList]},
		outputPrefix:  {ofCommandAnd, output},
		contentPrefix: {ofAnything, content},
		outcomePrefix: {ofCommandPart, message[musterv1.RolloutOutcome]},
	},
	spaceFleet: {
		agentPrefix:   {ofAnything, message[musterv1.Agent]},
		journalPrefix: {ofAnything, message[musterv1.JournalPosition]},
		tokenPrefix:   {ofAnything, message[musterv1.Token]},
		keyPrefix:     {ofAnything, message[musterv1.Key]},
		heldPrefix:    {ofAnything, message[musterv1.AgentConfigs]},
	},
	spaceConfig: {
		groupPrefix:   {ofAnything, message[musterv1.Group]},
		cfgPrefix:     {ofAnything, message[musterv1.Config]},
		gonePrefix:    {ofAnything, message[musterv1.Config]},
		verPrefix:     {ofAnything, message[musterv1.ConfigVersion]},
		stagedPrefix:  {ofAnything, nothing},
		rolloutPrefix: {ofCommand, message[musterv1.ConfigRollout]},
		offeredPrefix: {ofCommandPart, message[musterv1.RolloutOffers]},
	},
}

// rowForm is the form of what follows the prefix, and of the value.
type rowForm struct {
	rest  func(string) bool
	value func([]byte) error
}

// CheckRow says what is wrong with a row of the coordinator's store.
func CheckRow(space store.Space, key, value []byte) error {
	forms, ok := rowForms[space]
	if !ok {
		return fmt.Errorf("this program knows no space %q", space)
	}
	prefix, rest, _ := strings.Cut(string(key), "/")
	form, ok := forms[prefix+"/"]
	if !ok || !form.rest(rest) {
		return fmt.Errorf("this program has no such rows")
	}
	return form.value(value)
}

func ofAnything(rest string) bool { return rest != "" }
func ofCommand(rest string) bool  { return isCommandID(rest) }

func ofCommandAnd(rest string) bool {
	id, more, _ := strings.Cut(rest, "/")
	return isCommandID(id) && more != ""
}

// ofCommandPart is of one of several rows that are numbered.
func ofCommandPart(rest string) bool {
	id, number, _ := strings.Cut(rest, "/")
	n, err := strconv.ParseUint(number, 16, 32)
	return isCommandID(id) && err == nil && number == fmt.Sprintf("%08x", n)
}

func nothing(value []byte) error {
	if len(value) > 0 {
		return fmt.Errorf("holds %d bytes, want none", len(value))
	}
	return nil
}

func output(value []byte) error {
	if len(value) == 0 || len(value) > maxChunk {
		return fmt.Errorf("holds %d bytes of output, want 1 to %d", len(value), maxChunk)
	}
	return nil
}

func resultPack(value []byte) error {
	row := &musterv1.ResultPack{}
	if err := proto.Unmarshal(value, row); err != nil {
		return fmt.Errorf("is no ResultPack: %w", err)
	}
	if n := len(row.Targets); n == 0 || n > packTargets {
		return fmt.Errorf("holds %d targets, want 1 to %d", n, packTargets)
	}
	for _, t := range row.Targets {
		if t.AgentId == "" || !isFinal(t.State) {
			return fmt.Errorf("holds a target that is not final, %.150q is %s", t.AgentId, t.State)
		}
	}
	return nil
}

func content(value []byte) error {
	if len(value) == 0 || len(value) > store.MaxValue {
		return fmt.Errorf("holds %d bytes of a config, want 1 to %d", len(value), store.MaxValue)
	}
	return nil
}

// message wants the value to be an M.
func message[M any, P interface {
	*M
	proto.Message
}](value []byte) error {
	m := P(new(M))
	if err := proto.Unmarshal(value, m); err != nil {
		return fmt.Errorf("is no %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}
