package coordinator

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func TestInstanceContentIsOneStrictObject(t *testing.T) {
	deep := strings.Repeat(`{"a":`, maxJSONDepth+1) + "1" + strings.Repeat("}", maxJSONDepth+1)
	for content, ok := range map[string]bool{
		`{}`: true, ` {"a":1}` + "\n": true, `{"a":{"b":[1,{"c":null}]}}`: true,
		``: false, `[]`: false, `"x"`: false, `null`: false, `{`: false, `{"a":1}}`: false, `{"a":1} {"b":2}`: false, `{"a":1,}`: false,
		`{"a":1,"a":2}`: false, `{"a":1,"\u0061":2}`: false, `{"x":[{"a":1,"a":2}]}`: false, `{"a":NaN}`: false, `{"a":01}`: false,
		"\xef\xbb\xbf{}": false, "{\"a\":\"\xff\"}": false, `{'a':1}`: false, deep: false,
	} {
		if _, err := parseObject([]byte(content)); (err == nil) != ok {
			t.Errorf("%.60q: %v, want it taken: %v", content, err, ok)
		}
	}
}

// N74: objects are merged deep, everything else is replaced by the smaller
// scope, and numbers stay as they were written.
func TestMergeKeepsWhatIsWritten(t *testing.T) {
	for _, x := range []struct{ wide, small, want string }{
		{`{"a":1}`, `{"b":2}`, `{"a":1,"b":2}`},
		{`{"a":{"x":1,"y":1}}`, `{"a":{"y":2}}`, `{"a":{"x":1,"y":2}}`},
		{`{"a":{"x":1}}`, `{"a":3}`, `{"a":3}`},
		{`{"a":3}`, `{"a":{"x":1}}`, `{"a":{"x":1}}`},
		{`{"a":[1,2]}`, `{"a":[3]}`, `{"a":[3]}`},
		{`{"a":1}`, `{"a":null}`, `{"a":null}`},
		{`{"n":9007199254740993,"f":1.10,"e":1E400}`, `{"s":"<&>\u00e9"}`, `{"e":1E400,"f":1.10,"n":9007199254740993,"s":"<&>\u00e9"}`},
	} {
		o, err := parseObject([]byte(x.wide))
		if err != nil {
			t.Fatal(err)
		}
		small, err := parseObject([]byte(x.small))
		if err != nil {
			t.Fatal(err)
		}
		o.merge(small)
		got, err := o.text()
		if err != nil {
			t.Fatal(err)
		}
		if flat := strings.NewReplacer("\n", "", "  ", "", ": ", ":").Replace(string(got)); flat != x.want {
			t.Errorf("%s and %s: %s, want %s", x.wide, x.small, flat, x.want)
		}
	}
}

func instanceField(t *testing.T, content []byte, field string) any {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(content, &doc); err != nil {
		t.Fatal(err)
	}
	return doc[field]
}

// N74: fleet < group < agent; among groups and among configs the later name.
func TestInstanceScopesAndOrder(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a, b := r.taker("a").come(), r.taker("b").come()
		r.group("g1", "", "a")
		r.group("g2", "", "a")
		for _, name := range []string{"c1", "c2", "c3", "c4"} {
			r.head(musterv1.Config_INSTANCE, name)
		}
		r.version("c1", `{"who":"agent","c1":1}`)
		r.version("c2", `{"who":"g2","c2":1}`)
		r.version("c3", `{"who":"g1","c3":1}`)
		r.version("c4", `{"who":"fleet","c4":1}`)
		r.version("c4", `{"who":"other","c4":2}`)
		r.bind("c4", fleetWide(1), forGroup("g1", 2))
		r.bind("c3", forGroup("g1", 1))
		r.bind("c2", forGroup("g2", 1))
		r.bind("c1", forAgent("a", 1))
		resp := r.agentConfigs("a")
		if who := instanceField(t, resp.Instance, "who"); who != "agent" {
			t.Errorf("the agent's scope counts, got %v", who)
		}
		if n := instanceField(t, resp.Instance, "c4"); n != 2.0 {
			t.Errorf("the smaller binding of c4 counts, got %v", n)
		}
		var order []string
		for _, s := range resp.Sources {
			order = append(order, s.Config)
		}
		if got := strings.Join(order, " "); got != "c3 c4 c2 c1" {
			t.Errorf("merged in the order %s", got)
		}
		a.wantFile(instance, string(resp.Instance))
		if who := instanceField(t, b.files[instance], "who"); who != "fleet" {
			t.Errorf("on b: %v", who)
		}
		r.bind("c1")
		if who := instanceField(t, a.files[instance], "who"); who != "g2" {
			t.Errorf("the later group counts, got %v", who)
		}
		r.bind("c2")
		if who := instanceField(t, a.files[instance], "who"); who != "other" {
			t.Errorf("the later config of a scope counts, got %v", who)
		}
		r.wantConfig("c4", "a", applied, 2, 2)
		r.wantConfig("c4", "b", applied, 1, 1)
		for _, name := range []string{"c1", "c2", "c3", "c4"} {
			r.deleteConfig(name)
		}
		a.wantNoFile(instance)
		b.wantNoFile(instance)
	})
}

// counted is the value of a counter.
func counted(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("nothing is counted as %s", name)
	return 0
}

// P18: agents with the same sources share one document and one encoding.
func TestOneEncodingForAllAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		reg := prometheus.NewRegistry()
		r.cfg.Metrics = reg
		r.start()
		agents := make([]*taker, 40)
		for i := range agents {
			agents[i] = r.taker("a" + string(rune('0'+i/10)) + string(rune('0'+i%10))).come()
		}
		r.head(musterv1.Config_INSTANCE, "base")
		r.bind("base", fleetWide(r.version("base", `{"x":1}`)))
		r.pipeline("app", "content")
		settle()
		if p := agents[0].lastOffer().File.GetPath(); p == "" {
			t.Error("a file without a path is offered")
		}
		for _, a := range agents {
			if a.offers[0].File.GetPath() != instanceName {
				t.Errorf("the document goes to %q", a.offers[0].File.GetPath())
			}
			a.wantFile(file("app"), "content")
			a.wantFile(instance, "{\n  \"x\": 1\n}\n")
		}
		if n := counted(t, reg, "muster_coordinator_config_encodings_total"); n != 2 {
			t.Errorf("%v offers were encoded for %d agents, want 2", n, len(agents))
		}
		if n := counted(t, reg, "muster_coordinator_config_offers_total"); n != 80 {
			t.Errorf("%v offers were made, want 80", n)
		}
		r.stop()
		r.store.Close()
	})
}

func TestDocumentNumbersNeverMeet(t *testing.T) {
	plain := numberOf
	defer func() { numberOf = plain }()
	numberOf = func(_ string, salt int) int32 { return int32(salt) - 2 } // all meet: -2, -1, 0, 1, 2 …
	d := newDocNumbers()
	seen := map[int32]bool{}
	for i := range int32(5) {
		n := d.of([]configRef{{"c", i + 1}})
		if n == 0 || n == deletedVersion || seen[n] {
			t.Errorf("number %d, after %v", n, seen)
		}
		seen[n] = true
		if again := d.of([]configRef{{"c", i + 1}}); again != n {
			t.Errorf("%d, and then %d", n, again)
		}
		if from := d.known(n); len(from) != 1 || from[0].version != i+1 {
			t.Errorf("%d is of %v", n, from)
		}
	}
	numberOf = plain
	if a, b := newDocNumbers().of([]configRef{{"c", 1}}), newDocNumbers().of([]configRef{{"c", 1}}); a != b {
		t.Errorf("after a restart %d is %d", a, b)
	}
}

func TestInstanceDocumentIsFetchedWhenLarge(t *testing.T) {
	fleetTest(t, func(t *testing.T, r *rig) {
		a := r.taker("a").come()
		r.head(musterv1.Config_INSTANCE, "base")
		r.head(musterv1.Config_INSTANCE, "more")
		r.bind("base", fleetWide(r.version("base", `{"a":"`+strings.Repeat("a", 200<<10)+`"}`)))
		v, err := r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: "more", Content: []byte(`{"b":"` + strings.Repeat("b", 200<<10) + `"}`),
			File: &musterv1.FileSpec{Path: "etc/agent.json", Mode: "0640"}})
		if err != nil {
			t.Fatal(err)
		}
		r.bind("more", fleetWide(v.Version))
		settle()
		m := a.lastOffer()
		if m.Inline || m.File.GetPath() != "etc/agent.json" || m.File.Mode != "0640" {
			t.Errorf("offer %v", m.File)
		}
		a.wantFile(instance, string(r.agentConfigs("a").Instance))
		_, err = r.configs().CreateConfigVersion(t.Context(), &musterv1.CreateConfigVersionRequest{Config: "more", Content: []byte(`{"b":1,"b":2}`)})
		wantFault(t, err, codes.InvalidArgument, "content")
	})
}

// What is taken can be written, and is then read as the same.
func FuzzInstanceDocument(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":{"b":[1,{"c":null}]}}`, `{"n":1.10,"e":1E400,"s":"\ud800<&>"}`, `{"":{"":""}}`, "{\"\u2028\":1}", `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		o, err := parseObject(content)
		if err != nil {
			return
		}
		once, err := o.text()
		if err != nil {
			t.Fatalf("%q was taken and cannot be written: %v", content, err)
		}
		again, err := parseObject(once)
		if err != nil {
			t.Fatalf("%q became %q: %v", content, once, err)
		}
		again.merge(o)
		if twice, err := again.text(); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%q, and then %q, %v", once, twice, err)
		}
	})
}
