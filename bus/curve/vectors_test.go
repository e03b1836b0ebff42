package curve

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// clientVector is what a libzmq client sent to our server once.
type clientVector struct {
	ServerSecret, CookieKey, ClientKey []byte
	Hello, Initiate, Message           []byte
}

// serverVector is what a libzmq server sent to our client once.
type serverVector struct {
	ServerKey, TransientSecret []byte
	Welcome, Ready, Message    []byte
}

func saveVector(t *testing.T, name string, vector any) {
	t.Helper()
	data, err := json.MarshalIndent(vector, "", "\t")
	if err == nil {
		err = os.WriteFile(filepath.Join("testdata", name), append(data, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func loadVector[V any](t testing.TB, name string) (vector V) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err == nil {
		err = json.Unmarshal(data, &vector)
	}
	if err != nil {
		t.Fatal(err)
	}
	return vector
}

func refused(err error, reason Reason) bool {
	refusal, ok := errors.AsType[*Refusal](err)
	return ok && refusal.Reason == reason
}
