package northbound

import (
	"os"
	"regexp"
	"testing"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// The bodies that the README shows are taken.
func TestReadmeBodies(t *testing.T) {
	b, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	fake := working()
	fake.groups.put = func(r *musterv1.PutGroupRequest) (*musterv1.Group, error) { return r.GetGroup(), nil }
	fake.configs.put = func(r *musterv1.PutConfigRequest) (*musterv1.Config, error) { return r.GetConfig(), nil }
	fake.configs.create = func(r *musterv1.CreateConfigVersionRequest) (*musterv1.ConfigVersion, error) {
		return &musterv1.ConfigVersion{Config: r.GetConfig(), Version: 1}, nil
	}
	fake.rollouts.create = func(r *musterv1.CreateConfigRolloutRequest) (*musterv1.ConfigRollout, error) {
		return r.GetRollout(), nil
	}
	s := service(t, fake)
	bodies := regexp.MustCompile(`(?m)^(PUT|POST) +(/v1/\S+) +(\{.*\})$`).FindAllStringSubmatch(string(b), -1)
	if len(bodies) < 4 {
		t.Fatalf("only %d bodies in the README", len(bodies))
	}
	for _, m := range bodies {
		if got := s.do(t, m[1], m[2], m[3]); got.status/100 != 2 {
			t.Errorf("%s: %d %s", m[0], got.status, got.body)
		}
	}
}
