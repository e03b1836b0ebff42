package agentd

import (
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// A final Target goes up in an envelope with an id, so that a Nack says which
// one it is about: the command's, and with a mark the plain one that is sent
// in its place.
const plainMark = "+"

// maxAside is how many refused reports are kept for whoever looks into it.
const maxAside = 100

// onRefusedReport is told that the coordinator finds a final Target invalid and
// would do so each time. The report is set aside, and a plain one is sent that
// says so. When that is refused, too, the agent gives up: the command is
// settled as far as it is concerned.
func (a *Agent) onRefusedReport(envelope string, m *musterv1.Nack) {
	id, plain := strings.CutSuffix(envelope, plainMark)
	why := strings.TrimPrefix(m.Field+": "+m.Detail, ": ")
	was, now := a.ledger.refuse(id, plain, reason("the coordinator refused the report: "+why))
	switch {
	case was == nil: // settled meanwhile, or a copy of the report was refused before
	case now != nil:
		a.metrics.reportsRefused.Inc()
		a.log.Error("the coordinator refused a report; a plain one follows", "cmd", id, "reason", m.Reason, "detail", why, "aside", a.setAside(was))
		a.outbox.replace(now)
	default:
		a.log.Error("the coordinator refused a plain report; given up", "cmd", id, "state", was.State, "reason", m.Reason, "detail", why)
		a.settle([]string{id})
	}
}

// refuse returns the report that was refused, and for a full one the plain one
// that takes its place, also in the journal.
func (l *ledger) refuse(id string, plain bool, why string) (was, now *musterv1.Target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[id]
	if h == nil || h.final == nil || !h.told || h.refused != plain {
		return nil, nil
	}
	was = h.final
	if !plain {
		now = &musterv1.Target{CommandId: id, AgentId: was.AgentId, State: was.State, Reason: why, JournalSeq: was.JournalSeq}
		h.final, h.refused = now, true
		l.journal.appendLazily(record{Kind: kindEnded, ID: id, Target: encodeTarget(now)}, nil)
	}
	return was, now
}

// setAside keeps a report as text in the data folder, and returns where.
func (a *Agent) setAside(t *musterv1.Target) string {
	dir := filepath.Join(a.cfg.Dir, "refused")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err.Error()
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) >= maxAside {
		return "not kept: " + dir + " is full"
	}
	file := filepath.Join(dir, t.CommandId+".json")
	b, err := protojson.Marshal(t)
	if err == nil {
		err = os.WriteFile(file, append(b, '\n'), 0o600)
	}
	if err != nil {
		return err.Error()
	}
	return file
}

// replace sends a Target instead of the final one that there is.
func (o *outbox) replace(t *musterv1.Target) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unacked[t.CommandId] != nil {
		o.add(&parcel{id: t.CommandId, ask: t.CommandId + plainMark, target: t})
		o.wakeUp()
	}
}
