package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/musterhq/muster/coordinator/store"
	"github.com/musterhq/muster/coordinator/store/faulty"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// A crash has left target lists without a command, with results of agents that
// would not have got it, and the disk is full.
func TestC107StartOnAFullDisk(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		done := r.submit(to("a")).Id
		a.report(done, musterv1.Target_SUCCEEDED)
		a.leave()
		r.stop()
		const draft = "01M8NHX3F10HS0QFF2JDMNC8QJ"
		_, err := r.store.Commit(t.Context(), store.Batch{Ops: []store.Op{
			{Space: spaceHistory, Key: draftKey(draft)},
			{Space: spaceHistory, Key: packKey(draft, 0), Value: encode(&musterv1.ResultPack{Targets: []*musterv1.Target{{AgentId: "a", State: musterv1.Target_CANCELLED}}})},
			{Space: spaceBulk, Key: targetsKey(draft, 0), Value: encode(&musterv1.TargetList{AgentIds: []string{"a"}})},
		}})
		if err != nil {
			t.Fatal(err)
		}
		whole := r.store
		r.store = faulty.New(whole, func(c faulty.Call) (f faulty.Fault) {
			if c.Method == faulty.Commit {
				f.Refuse = fmt.Errorf("write /disk: %w", syscall.ENOSPC)
			}
			return f
		})
		r.start()
		r.wantState(done, "a", musterv1.Target_SUCCEEDED)
		_, err = r.cmds.CreateCommand(t.Context(), &musterv1.CreateCommandRequest{Command: to("a")})
		if s := status.Convert(toStatus(err)); s.Code() != codes.ResourceExhausted {
			t.Errorf("submit on a full disk: %v", s)
		}
		r.stop()
		r.store = whole
		r.start()
		for _, k := range append(r.keys(spaceBulk), r.keys(spaceHistory)...) {
			if strings.Contains(k, draft) {
				t.Errorf("row %s is left after a start with room", k)
			}
		}
	})
}

func TestC109StartPassesABadOpenCommand(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		bad, good := r.submit(to("a")).Id, r.submit(to("a")).Id
		a.leave()
		r.stop()
		_, err := r.store.Commit(t.Context(), store.Batch{Ops: []store.Op{{Space: spaceHistory, Key: cmdKey(bad), Value: []byte{0xff}}}})
		if err != nil {
			t.Fatal(err)
		}
		r.start()
		b := r.peer("a").join()
		defer b.leave()
		if got := b.commands(); len(got) != 1 || got[0].Id != good {
			t.Errorf("sent again: %v", got)
		}
		b.report(good, musterv1.Target_SUCCEEDED)
		r.wantState(good, "a", musterv1.Target_SUCCEEDED)
		if got := walk(t, r, &musterv1.ListCommandsRequest{}); !slices.Equal(got, []string{good}) {
			t.Errorf("listed: %v", got)
		}
		if _, err := r.cmds.GetCommand(t.Context(), &musterv1.GetCommandRequest{Id: bad}); !errors.Is(err, errBadRow) {
			t.Errorf("the bad one: %v", err)
		}
	})
}
