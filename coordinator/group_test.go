package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/musterhq/muster/coordinator/store"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func (r *rig) groups() *groupService { return &groupService{c: r.c} }

// group puts a group with an expression and named agents.
func (r *rig) group(name, where string, agents ...string) *musterv1.Group {
	r.t.Helper()
	g, err := r.groups().PutGroup(r.t.Context(), &musterv1.PutGroupRequest{Group: &musterv1.Group{Name: name, Where: where, Agents: agents}})
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

func (r *rig) wantMembers(name string, want ...string) {
	r.t.Helper()
	synctest.Wait()
	page, err := r.groups().ListGroupAgents(r.t.Context(), &musterv1.ListGroupAgentsRequest{Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	g, err := r.groups().GetGroup(r.t.Context(), &musterv1.GetGroupRequest{Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	if !slices.Equal(page.AgentIds, want) || int(g.Size) != len(want) {
		r.t.Fatalf("group %s: %d members %q, want %q", name, g.Size, page.AgentIds, want)
	}
}

func (r *rig) wantGroups(agent string, want ...string) {
	r.t.Helper()
	synctest.Wait()
	a, err := (&agentService{c: r.c}).GetAgent(r.t.Context(), &musterv1.GetAgentRequest{Id: agent})
	if err != nil {
		r.t.Fatal(err)
	}
	if !slices.Equal(a.Groups, want) {
		r.t.Fatalf("agent %s is in %q, want %q", agent, a.Groups, want)
	}
}

// tagged is a peer with tags, given as "env=prod".
func (r *rig) tagged(id string, tags ...string) *peer {
	p := r.peer(id)
	p.tag(tags...)
	return p
}

func (p *peer) tag(tags ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reg = proto.CloneOf(p.reg)
	p.reg.Tags = map[string]string{}
	for _, t := range tags {
		k, v, _ := strings.Cut(t, "=")
		p.reg.Tags[k] = v
	}
}

// again registers once more on the same link.
func (p *peer) again() {
	p.r.t.Helper()
	p.mu.Lock()
	p.seq++
	p.reg.SequenceNum = p.seq
	m := p.reg
	p.mu.Unlock()
	p.say(m)
}

// wantReason fails unless err has this reason and names the field.
func wantReason(t *testing.T, err error, reason, field string) {
	t.Helper()
	var got, fields []string
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			got = append(got, d.Reason)
		case *errdetails.BadRequest:
			for _, v := range d.FieldViolations {
				fields = append(fields, v.Field)
			}
		}
	}
	if !slices.Equal(got, []string{reason}) || field != "" && !slices.Contains(fields, field) {
		t.Errorf("got %v: reason %q, fields %q, want %s of %s", err, got, fields, reason, field)
	}
}

// TestN43N68GroupsByTagsAndAddress: groups are found by tags, which are names
// and values on both sides, and by ip.
func TestN43N68GroupsByTagsAndAddress(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.tagged("a", "env=prod", "role=web"), r.tagged("b", "env=dev")
		a.reg.Attributes = &musterv1.Attributes{Ip: "10.1.2.3"}
		b.reg.Attributes = &musterv1.Attributes{Ip: "10.2.0.1"}
		a.join()
		defer a.leave()
		r.group("prod", `tags.env == "prod"`)
		r.group("net-1", `ip.startsWith("10.1.")`)
		r.group("everybody", `true`)
		r.group("picked", "", "b", "later", "b")
		b.join()
		defer b.leave()
		r.wantMembers("prod", "a")
		r.wantMembers("net-1", "a")
		r.wantMembers("everybody", "a", "b")
		r.wantMembers("picked", "b")
		r.wantGroups("a", "everybody", "net-1", "prod")
		r.wantGroups("b", "everybody", "picked")
		l := r.peer("later").join()
		defer l.leave()
		r.wantMembers("picked", "b", "later")
		list, err := (&agentService{c: r.c}).ListAgents(t.Context(), &musterv1.ListAgentsRequest{})
		if err != nil || !slices.Equal(list.Agents[2].Groups, []string{"everybody", "picked"}) {
			t.Errorf("listed: %v, %v", list, err)
		}
	})
}

// TestN94GroupFollowsTags: an agent whose tags change joins and leaves with its
// registration, on the same link or another, and who follows groups is told.
func TestN94GroupFollowsTags(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		var told []string
		r.c.groups.onChange = append(r.c.groups.onChange, func(ids []string) { told = append(told, ids...) })
		r.group("prod", `tags.env == "prod"`)
		r.group("dev", `tags.env == "dev"`)
		a := r.tagged("a", "env=dev").join()
		r.wantGroups("a", "dev")
		a.tag("env=prod")
		a.again()
		r.wantGroups("a", "prod")
		r.wantMembers("dev")
		a.again()
		time.Sleep(time.Minute)
		a.leave()
		a.tag()
		a.join()
		r.wantGroups("a")
		r.wantMembers("prod")
		if want := []string{"a", "a", "a"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q: once for each change", told, want)
		}
		a.leave()
	})
}

// TestN103AgentIsInItsGroupsWhenItRegisters: also before the loop has come to it.
func TestN103AgentIsInItsGroupsWhenItRegisters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		c, err := New(t.Context(), r.store, r.cfg) // not running: nothing but the asking works it out
		if err != nil {
			t.Fatal(err)
		}
		row := &musterv1.Group{Name: "prod", Where: `tags.env == "prod"`}
		c.groups.change(store.Event{KV: store.KV{Key: groupKey("prod"), Value: encode(row)}})
		c.adopt(&musterv1.Agent{Id: "a", Tags: map[string]string{"env": "prod"}})
		c.groups.touch("a")
		if got := c.groups.of("a"); !slices.Equal(got, []string{"prod"}) {
			t.Errorf("groups %q", got)
		}
		c.fleet.stop()
		r.store.Close()
	})
}

func TestDeletedAgentIsInNoGroup(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.group("all", "true", "a")
		a := r.peer("a").join()
		r.wantMembers("all", "a")
		a.leave()
		if _, err := (&agentService{c: r.c}).DeleteAgent(t.Context(), &musterv1.DeleteAgentRequest{Id: "a"}); err != nil {
			t.Fatal(err)
		}
		r.wantMembers("all")
	})
}

func TestGroupOfAStatus(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.group("up", `status == "ONLINE"`)
		r.group("all", `id != ""`)
		a := r.peer("a").join()
		r.wantMembers("up", "a")
		a.leave()
		r.wantMembers("up")
		r.wantMembers("all", "a")
		a.join()
		r.wantGroups("a", "all", "up")
		a.leave()
	})
}

func TestGroupChangesAndGoes(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.tagged("a", "env=prod").join(), r.tagged("b", "env=dev").join()
		defer func() { a.leave(); b.leave() }()
		w := r.watch("", "group")
		r.group("g", `tags.env == "prod"`)
		r.group("g", `tags.env == "dev"`)
		r.group("h", "", "b")
		r.wantMembers("g", "b")
		r.wantGroups("b", "g", "h")
		if _, err := r.groups().DeleteGroup(t.Context(), &musterv1.DeleteGroupRequest{Name: "g"}); err != nil {
			t.Fatal(err)
		}
		r.wantGroups("b", "h")
		_, err := r.groups().GetGroup(t.Context(), &musterv1.GetGroupRequest{Name: "g"})
		wantReason(t, err, "NOT_FOUND", "")
		synctest.Wait()
		var got []string
		for _, e := range w.got {
			got = append(got, fmt.Sprintf("%s %d %t", e.Group.Name, e.Group.Size, e.Deleted))
		}
		if want := []string{"g 1 false", "g 1 false", "h 1 false", "g 1 true"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		w.stop()
	})
}

func TestGroupEtagGuards(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		put := func(where, ifMatch string, ifNone bool) (*musterv1.Group, error) {
			return r.groups().PutGroup(t.Context(), &musterv1.PutGroupRequest{
				Group: &musterv1.Group{Name: "g", Where: where}, IfMatch: ifMatch, IfNoneMatch: ifNone})
		}
		_, err := put("true", "*", false)
		wantReason(t, err, "ETAG_MISMATCH", "")
		first, err := put("true", "", true)
		if err != nil {
			t.Fatal(err)
		}
		_, err = put("true", "", true)
		wantReason(t, err, "ETAG_MISMATCH", "")
		second, err := put("false", first.Etag, false)
		if err != nil || second.Etag == first.Etag || !proto.Equal(second.CreateTime, first.CreateTime) {
			t.Fatalf("got %v, %v", second, err)
		}
		_, err = put("true", first.Etag, false)
		wantReason(t, err, "ETAG_MISMATCH", "")
		_, err = r.groups().DeleteGroup(t.Context(), &musterv1.DeleteGroupRequest{Name: "g", IfMatch: first.Etag})
		wantReason(t, err, "ETAG_MISMATCH", "")
		time.Sleep(time.Second)
		if same, err := put("false", "", false); err != nil || same.Etag != second.Etag || !proto.Equal(same.UpdateTime, second.UpdateTime) {
			t.Errorf("put as it is: %v, %v", same, err)
		}
		if got, err := r.groups().GetGroup(t.Context(), &musterv1.GetGroupRequest{Name: "g"}); err != nil || got.Etag != second.Etag {
			t.Errorf("got %v, %v", got, err)
		}
		if _, err = r.groups().DeleteGroup(t.Context(), &musterv1.DeleteGroupRequest{Name: "g", IfMatch: second.Etag}); err != nil {
			t.Error(err)
		}
	})
}

func TestGroupDryRunChangesNothing(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.peer("a").join()
		defer a.leave()
		g, err := r.groups().PutGroup(t.Context(), &musterv1.PutGroupRequest{Group: &musterv1.Group{Name: "g", Where: "true"}, DryRun: true})
		if err != nil || g.Size != 1 {
			t.Fatalf("got %v, %v", g, err)
		}
		_, err = r.groups().GetGroup(t.Context(), &musterv1.GetGroupRequest{Name: "g"})
		wantReason(t, err, "NOT_FOUND", "")
	})
}

func TestGroupRefuses(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.tagged("a", manyTags(60)...).join()
		defer a.leave()
		many := make([]string, maxGroupAgents+1)
		for i := range many {
			many[i] = fmt.Sprintf("a%d", i)
		}
		long := make([]string, 2000)
		for i := range long {
			long[i] = fmt.Sprintf("%0120d", i)
		}
		for _, bad := range []struct {
			g     *musterv1.Group
			field string
		}{
			{nil, "name"},
			{&musterv1.Group{}, "name"},
			{&musterv1.Group{Name: ".."}, "name"},
			{&musterv1.Group{Name: "a/b"}, "name"},
			{&musterv1.Group{Name: "a\x00"}, "name"},
			{&musterv1.Group{Name: "grüße"}, "name"},
			{&musterv1.Group{Name: strings.Repeat("g", 129)}, "name"},
			{&musterv1.Group{Name: "g", Where: "tags."}, "where"},
			{&musterv1.Group{Name: "g", Where: "id"}, "where"},
			{&musterv1.Group{Name: "g", Where: "nonsense == 1"}, "where"},
			{&musterv1.Group{Name: "g", Where: strings.Repeat("true && ", 1000) + "true"}, "where"},
			{&musterv1.Group{Name: "g", Where: costly}, "where"},
			{&musterv1.Group{Name: "g", Agents: []string{"ok", "../x"}}, "agents[1]"},
			{&musterv1.Group{Name: "g", Agents: many}, "agents"},
			{&musterv1.Group{Name: "g", Agents: long}, "agents"},
			{&musterv1.Group{Name: "g", Description: strings.Repeat("d", 1025)}, "description"},
		} {
			_, err := r.groups().PutGroup(t.Context(), &musterv1.PutGroupRequest{Group: bad.g})
			wantReason(t, err, "INVALID_FIELD", bad.field)
		}
		if names := r.c.groups.names(); len(names) > 0 {
			t.Errorf("there are %q", names)
		}
	})
}

// costly compares all tags with all tags, three deep.
const costly = `tags.all(a, tags.all(b, tags.all(c, a + b + c != "")))`

func manyTags(n int) (tags []string) {
	for i := range n {
		tags = append(tags, fmt.Sprintf("tag%d=x", i))
	}
	return tags
}

func TestGroupTooCostlyForAnAgent(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.tagged("a", "env=prod").join(), r.tagged("b", "env=prod").join()
		defer func() { a.leave(); b.leave() }()
		r.group("g", costly)
		r.wantMembers("g", "a", "b")
		a.tag(manyTags(60)...)
		a.again()
		r.wantMembers("g", "b")
		reg := prometheus.NewRegistry()
		reg.MustRegister(r.c.metrics.drops)
		counted := func() string {
			told, err := reg.Gather()
			if err != nil || len(told) != 1 {
				t.Fatalf("counted: %v, %v", told, err)
			}
			return told[0].String()
		}
		once := counted()
		if !strings.Contains(once, `"group_member"`) {
			t.Errorf("counted: %s", once)
		}
		time.Sleep(10 * time.Minute) // beats change nothing: nothing is worked out
		if later := counted(); later != once {
			t.Errorf("counted: %s, before %s", later, once)
		}
	})
}

func TestGroupInUseStays(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		r.group("g", "true")
		head := &musterv1.Config{Name: "c", Kind: musterv1.Config_PIPELINE, Bindings: []*musterv1.Binding{{Group: "g", Version: 1}}}
		if _, err := r.store.Commit(t.Context(), store.Batch{Ops: []store.Op{{Space: spaceConfig, Key: cfgKey("c"), Value: encode(head)}}}); err != nil {
			t.Fatal(err)
		}
		_, err := r.groups().DeleteGroup(t.Context(), &musterv1.DeleteGroupRequest{Name: "g"})
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("got %v", err)
		}
		wantReason(t, err, "GROUP_IN_USE", "")
		r.wantMembers("g")
	})
}

func TestGroupsSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		a := r.tagged("a", "env=prod").join()
		r.group("prod", `tags.env == "prod"`)
		r.group("picked", "", "a", "b")
		etag := r.group("prod", `tags.env == "prod" && true`).Etag
		a.leave()
		r.stop()
		r.start()
		r.wantMembers("prod", "a")
		r.wantGroups("a", "picked", "prod")
		if g, err := r.groups().GetGroup(t.Context(), &musterv1.GetGroupRequest{Name: "prod"}); err != nil || g.Etag != etag {
			t.Errorf("got %v, %v, want the etag %s", g, err, etag)
		}
		r.stop()
		r.store.Close()
	})
}

// TestGroupsAfterTheWatchWasCut: what was missed is read.
func TestGroupsAfterTheWatchWasCut(t *testing.T) {
	sickTest(t, func(t *testing.T, r *rig, s *sick) {
		a := r.peer("a").join()
		defer a.leave()
		r.group("goes", "true")
		r.group("stays", "true")
		s.blind.Store(true)
		(*s.cutConfig.Load())()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		r.groups().DeleteGroup(ctx, &musterv1.DeleteGroupRequest{Name: "goes"})
		row := &musterv1.Group{Name: "comes", Agents: []string{"a"}}
		if _, err := r.store.Commit(t.Context(), store.Batch{Ops: []store.Op{{Space: spaceConfig, Key: groupKey("comes"), Value: encode(row)}}}); err != nil {
			t.Fatal(err)
		}
		s.blind.Store(false)
		time.Sleep(5 * time.Second)
		r.wantGroups("a", "comes", "stays")
		r.group("later", "true")
		r.wantGroups("a", "comes", "later", "stays")
	})
}

// TestGroupRowNobodyCanRead loses that group only.
func TestGroupRowNobodyCanRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		_, err := r.store.Commit(t.Context(), store.Batch{Ops: []store.Op{
			{Space: spaceConfig, Key: groupKey("bad"), Value: []byte{0xff}},
			{Space: spaceConfig, Key: groupKey("newer"), Value: encode(&musterv1.Group{Name: "newer", Where: "future(id)", Agents: []string{"a"}})},
			{Space: spaceConfig, Key: groupKey("good"), Value: encode(&musterv1.Group{Name: "good", Where: "true"})},
		}})
		if err != nil {
			t.Fatal(err)
		}
		r.start()
		a := r.peer("a").join()
		r.wantGroups("a", "good", "newer")
		a.leave()
		r.stop()
		r.store.Close()
	})
}

func TestPreviewGroup(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		for _, p := range []*peer{r.tagged("a", "env=prod"), r.tagged("b", "env=prod"), r.tagged("c", "env=dev")} {
			defer p.join().leave()
		}
		r.group("g", `tags.env == "dev"`, "a")
		got, err := r.groups().PreviewGroup(t.Context(), &musterv1.PreviewGroupRequest{
			Group: &musterv1.Group{Name: "g", Where: `tags.env == "prod"`}, PageSize: 1})
		if err != nil || got.Total != 2 || got.Fleet != 3 || got.Leaving != 1 || !slices.Equal(got.AgentIds, []string{"a"}) || len(got.Joining) != 0 {
			t.Fatalf("got %v, %v", got, err)
		}
		got, err = r.groups().PreviewGroup(t.Context(), &musterv1.PreviewGroupRequest{
			Group: &musterv1.Group{Name: "g", Where: `tags.env == "prod"`}, PageSize: 1, PageToken: got.NextPageToken})
		if err != nil || !slices.Equal(got.AgentIds, []string{"b"}) || !slices.Equal(got.Joining, []string{"b"}) || got.NextPageToken != "" {
			t.Errorf("got %v, %v", got, err)
		}
		nobody, err := r.groups().PreviewGroup(t.Context(), &musterv1.PreviewGroupRequest{Group: &musterv1.Group{Where: "false"}})
		if err != nil || nobody.Total != 0 {
			t.Errorf("got %v, %v", nobody, err)
		}
		_, err = r.groups().PreviewGroup(t.Context(), &musterv1.PreviewGroupRequest{Group: &musterv1.Group{Where: "("}})
		wantReason(t, err, "INVALID_FIELD", "where")
	})
}

func TestListGroupsByPages(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		for _, n := range []string{"c", "a", "b"} {
			r.group(n, "true")
		}
		var got []string
		token := ""
		for {
			page, err := r.groups().ListGroups(t.Context(), &musterv1.ListGroupsRequest{PageSize: 2, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range page.Groups {
				got = append(got, g.Name)
			}
			if token = page.NextPageToken; token == "" {
				break
			}
			r.group("aa", "true") // before the page that comes
		}
		if want := []string{"a", "b", "c"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		_, err := r.groups().ListGroups(t.Context(), &musterv1.ListGroupsRequest{PageToken: "nonsense"})
		wantReason(t, err, "INVALID_FIELD", "page_token")
	})
}

func TestCommandToGroups(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b, c := r.tagged("a", "env=prod").join(), r.tagged("b", "env=dev").join(), r.tagged("c", "env=old").join()
		defer func() { a.leave(); b.leave(); c.leave() }()
		r.group("prod", `tags.env == "prod"`)
		r.group("both", "", "a", "b")
		r.group("nobody", "")
		cmd := to()
		cmd.Target = &musterv1.TargetSelector{Groups: []string{"both", "prod"}}
		got := r.submit(cmd)
		if got.Counts.Total != 2 {
			t.Errorf("counts %v", got.Counts)
		}
		a.wantGot(1)
		b.wantGot(1)
		c.wantGot(0)

		for _, bad := range []struct {
			target        *musterv1.TargetSelector
			reason, field string
		}{
			{&musterv1.TargetSelector{Groups: []string{"prod", "unknown"}}, "INVALID_FIELD", "target.groups[1]"},
			{&musterv1.TargetSelector{Groups: []string{"nobody"}}, "NO_TARGETS", "target.groups"},
			{&musterv1.TargetSelector{Groups: []string{"prod"}, All: true}, "INVALID_FIELD", "target"},
			{&musterv1.TargetSelector{Groups: []string{"prod"}, Where: "true"}, "INVALID_FIELD", "target"},
			{&musterv1.TargetSelector{Groups: slices.Repeat([]string{"prod"}, 101)}, "INVALID_FIELD", "target.groups"},
			{&musterv1.TargetSelector{}, "INVALID_FIELD", "target"},
		} {
			cmd := to()
			cmd.Target = bad.target
			_, err := r.submitKey("", cmd)
			wantReason(t, err, bad.reason, bad.field)
			_, err = r.cmds.PreviewCommand(t.Context(), &musterv1.PreviewCommandRequest{Command: cmd})
			wantReason(t, err, bad.reason, bad.field)
		}
	})
}

// TestGroupOfALargeFleet: a change of a group looks at each agent once, and a
// change of an agent at each group.
func TestGroupOfALargeFleet(t *testing.T) {
	r := newRig(t)
	c, err := New(t.Context(), r.store, r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		c.adopt(&musterv1.Agent{Id: fmt.Sprintf("a%04d", i), Tags: map[string]string{"env": "prod", "n": fmt.Sprint(i % 10)}})
	}
	put := func(name, where string) {
		c.groups.change(store.Event{KV: store.KV{Key: groupKey(name), Value: encode(&musterv1.Group{Name: name, Where: where})}})
	}
	began := time.Now()
	for i := range 10 {
		put(fmt.Sprint("g", i), fmt.Sprintf(`tags.env == "prod" && tags.n == "%d"`, i))
	}
	if ids, _ := c.groups.members("g3"); len(ids) != 200 {
		t.Errorf("%d members, want 200", len(ids))
	}
	took := time.Since(began)
	t.Logf("a change of a group of 2,000 agents: %v", took/10)
	if took > 10*time.Second {
		t.Errorf("10 changes took %v", took)
	}
	c.fleet.stop()
	r.store.Close()
}
