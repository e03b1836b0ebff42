package simagent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster/bus"
	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func (s *station) onFeedback(_ *bus.Peer, _ *musterv1.Envelope, m *musterv1.ConfigFeedback) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses = append(s.statuses, m.Configs...)
	return nil
}

func (s *station) onFetch(p *bus.Peer, _ *musterv1.Envelope, m *musterv1.FetchConfig) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetches = append(s.fetches, m)
	if s.content == nil {
		return nil
	}
	c := &musterv1.ConfigContent{Kind: m.Kind, Name: m.Name, Version: m.Version, Offset: m.Offset, Size: uint32(len(s.content))}
	c.Data = s.content[m.Offset:min(int(m.Offset)+256<<10, len(s.content))]
	return p.Send(c)
}

func offerOf(name string, version int32, content []byte, inline bool) *musterv1.ConfigOffer {
	sum := sha256.Sum256(content)
	o := &musterv1.ConfigOffer{
		Kind: musterv1.Config_PIPELINE, Name: name, Version: version,
		Size: uint32(len(content)), Sha256: hex.EncodeToString(sum[:]), Inline: inline,
	}
	if inline {
		o.Content = content
	}
	return o
}

func removal(name string) *musterv1.ConfigOffer {
	return &musterv1.ConfigOffer{Kind: musterv1.Config_PIPELINE, Name: name, Version: -1}
}

// wantStatuses checks what was told of configs since it was called last.
func (s *station) wantStatuses(want ...string) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for _, c := range s.statuses {
		got = append(got, fmt.Sprintf("%s %d %v %d", c.Name, c.Version, c.Status, c.RunningVersion))
	}
	s.statuses = nil
	if !slices.Equal(got, want) {
		s.t.Errorf("told %q, want %q", got, want)
	}
}

// lastRegister is what the agent said of its configs when it came last.
func (s *station) lastRegister() []*musterv1.ConfigStatus {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.registers[len(s.registers)-1].Configs
}

func applyAll(Offered) Answer { return Answer{} }

func TestAgentAppliesConfigs(t *testing.T) {
	var got []byte
	stationTest(t, Config{OnConfig: func(o Offered) Answer { got = o.Content; return Answer{} }}, func(t *testing.T, s *station) {
		if c := s.registers[0].Capabilities; c&6 != 6 {
			t.Errorf("capabilities %b", c)
		}
		s.say(offerOf("a", 1, []byte("one"), true))
		s.wantStatuses("a 1 APPLYING 0", "a 1 APPLIED 1")
		s.say(offerOf("a", 1, []byte("one"), true)) // an equal version is nothing
		s.wantStatuses()
		large := bytes.Repeat([]byte("muster "), 100<<10)
		s.set(func() { s.content = large })
		s.say(offerOf("a", 7, large, false))
		s.wantStatuses("a 7 APPLYING 1", "a 7 APPLIED 7")
		if !bytes.Equal(got, large) || len(s.fetches) != 3 {
			t.Errorf("%d bytes by %d fetches", len(got), len(s.fetches))
		}
		s.cut()
		if held := s.lastRegister(); len(held) != 1 || held[0].RunningVersion != 7 || held[0].Status != musterv1.ConfigStatus_APPLIED {
			t.Errorf("registered with %v", held)
		}
		s.say(removal("a"))
		s.wantStatuses("a -1 APPLYING 7", "a -1 DELETED 0")
		s.wantReport(func(r Report) bool { return r.Offers == 4 && r.Applied == 2 && r.Pieces == 3 && r.Refused == 0 })
		if c := s.fleet.ConfigOf(0, musterv1.Config_PIPELINE, "a"); c.Status != musterv1.ConfigStatus_DELETED {
			t.Errorf("got %v", c)
		}
	})
}

func TestAgentFailsConfigsAsTold(t *testing.T) {
	bad := func(o Offered) Answer {
		if o.Version == 2 {
			return Answer{Fail: "told to"}
		}
		return Answer{}
	}
	stationTest(t, Config{OnConfig: bad}, func(t *testing.T, s *station) {
		s.say(offerOf("a", 1, []byte("one"), true))
		s.say(offerOf("a", 2, []byte("two"), true))
		s.wantStatuses("a 1 APPLYING 0", "a 1 APPLIED 1", "a 2 APPLYING 1", "a 2 FAILED 1")
		s.say(offerOf("a", 2, []byte("two"), true)) // what failed may be offered again
		s.wantStatuses("a 2 APPLYING 1", "a 2 FAILED 1")
		broken := offerOf("a", 3, []byte("three"), true)
		broken.Sha256 = ""
		s.say(broken)
		c := s.fleet.ConfigOf(0, musterv1.Config_PIPELINE, "a")
		if c.Version != 3 || c.Status != musterv1.ConfigStatus_FAILED || c.Reason == "" {
			t.Errorf("got %v", c)
		}
		s.wantReport(func(r Report) bool { return r.Refused == 3 })
	})
}

func TestNewestConfigWins(t *testing.T) {
	var asked atomic.Int32
	slow := func(Offered) Answer { asked.Add(1); return Answer{Takes: time.Minute} }
	stationTest(t, Config{OnConfig: slow}, func(t *testing.T, s *station) {
		for v := range int32(5) {
			s.say(offerOf("a", v+1, []byte{byte(v)}, true))
		}
		time.Sleep(2 * time.Minute)
		s.wantStatuses("a 1 APPLYING 0", "a 2 APPLYING 0", "a 3 APPLYING 0", "a 4 APPLYING 0", "a 5 APPLYING 0", "a 5 APPLIED 5")
		s.wantReport(func(r Report) bool { return r.Applied == 1 })
	})
}

func TestLostFetchWaitsForTheNextOffer(t *testing.T) {
	stationTest(t, Config{OnConfig: applyAll}, func(t *testing.T, s *station) {
		s.say(offerOf("a", 1, []byte("one"), true))
		s.say(offerOf("a", 2, []byte("two"), false)) // and nothing comes
		s.cut()
		if held := s.lastRegister(); len(held) != 1 || held[0].Version != 1 || held[0].Status != musterv1.ConfigStatus_APPLIED {
			t.Errorf("registered with %v", held)
		}
		s.say(offerOf("a", 3, []byte("gone"), false), &musterv1.ConfigContent{Kind: musterv1.Config_PIPELINE, Name: "a", Version: 3, Gone: true})
		if c := s.fleet.ConfigOf(0, musterv1.Config_PIPELINE, "a"); c.Version != 1 {
			t.Errorf("got %v", c)
		}
		s.say(offerOf("a", 2, []byte("two"), true))
		if c := s.fleet.ConfigOf(0, musterv1.Config_PIPELINE, "a"); c.RunningVersion != 2 {
			t.Errorf("got %v", c)
		}
	})
}

func TestAgentDiesOfAConfig(t *testing.T) {
	deadly := func(o Offered) Answer {
		return Answer{Die: o.Version > 1, Back: time.Duration(3-o.Version) * time.Minute}
	}
	stationTest(t, Config{OnConfig: deadly}, func(t *testing.T, s *station) {
		s.say(offerOf("a", 1, []byte("one"), true))
		s.say(offerOf("a", 2, []byte("two"), true))
		s.wantReport(func(r Report) bool { return r.Connected == 0 && r.Errors["died"] == 1 })
		time.Sleep(2 * time.Minute)
		held := s.lastRegister()
		if s.came() != 2 || len(held) != 1 || held[0].Status != musterv1.ConfigStatus_FAILED || held[0].Version != 2 || held[0].RunningVersion != 1 {
			t.Errorf("after %d links: %v", s.came(), held)
		}
		s.say(offerOf("a", 3, []byte("three"), true))
		time.Sleep(time.Hour)
		s.wantReport(func(r Report) bool { return r.Connected == 0 && r.Vanished == 1 && r.Registrations == 2 })
	})
}
