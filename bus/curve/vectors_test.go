package curve

import (
	"bytes"
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

// server gives our side before HELLO, and between WELCOME and INITIATE.
func (v *clientVector) server(t testing.TB) (before, between ServerHandshake) {
	t.Helper()
	secret, err := newSecretKey((*[keySize]byte)(v.ServerSecret))
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(secret)
	server.jar.fresh = (*[keySize]byte)(v.CookieKey)
	server.jar.turning = true // never: the vector is older than a minute
	before = *server.Handshake()
	between = ServerHandshake{server: server, stage: atInitiate, count: 1}
	copy(between.cookie[:], v.Initiate[9:])
	return before, between
}

// client gives our side before WELCOME, and between INITIATE and READY.
func (v *serverVector) client(t testing.TB) (before, between ClientHandshake) {
	t.Helper()
	transient, err := newSecretKey((*[keySize]byte)(v.TransientSecret))
	if err != nil {
		t.Fatal(err)
	}
	key := PublicKey(v.ServerKey)
	shared, err := transient.shared(&key)
	if err != nil {
		t.Fatal(err)
	}
	_, secret := newPair(t)
	h := ClientHandshake{
		client: NewClient(secret, key), stage: atWelcome, count: 1,
		public: transient.Public(), secret: transient, server: shared,
	}
	before = h
	if err := h.Welcome(v.Welcome); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Initiate(nil); err != nil {
		t.Fatal(err)
	}
	return before, h
}

func TestRecordedLibzmqClient(t *testing.T) {
	v := loadVector[clientVector](t, "libzmq-client.json")
	before, between := v.server(t)
	if _, err := before.Hello(v.Hello); err != nil {
		t.Fatal(err)
	}
	key, metadata, err := between.Initiate(v.Initiate)
	if err != nil {
		t.Fatal(err)
	}
	if key != PublicKey(v.ClientKey) || metadata["Socket-Type"] != "DEALER" || metadata["Identity"] != "web-1" {
		t.Errorf("key %v, metadata %q", key, metadata)
	}
	_, session, err := between.Ready(nil)
	if err != nil {
		t.Fatal(err)
	}
	if flags, payload, err := session.Open(nil, v.Message); err != nil || flags != Command || !bytes.HasPrefix(payload, []byte("\x04PING")) {
		t.Errorf("flags %d, %q, error %v; want PING", flags, payload, err)
	}
}

func TestRecordedLibzmqServer(t *testing.T) {
	v := loadVector[serverVector](t, "libzmq-server.json")
	_, between := v.client(t)
	metadata, session, err := between.Ready(v.Ready)
	if err != nil {
		t.Fatal(err)
	}
	if metadata["Socket-Type"] != "DEALER" {
		t.Errorf("metadata %q", metadata)
	}
	if flags, payload, err := session.Open(nil, v.Message); err != nil || flags != Command || !bytes.HasPrefix(payload, []byte("\x04PING")) {
		t.Errorf("flags %d, %q, error %v; want PING", flags, payload, err)
	}
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
