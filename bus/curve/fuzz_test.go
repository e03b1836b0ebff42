package curve

import (
	"bytes"
	"testing"
)

// Each target takes a command as it comes, and then, where there is one, what a
// peer with the right keys could put into it. The seeds are what libzmq sent.

func FuzzHello(f *testing.F) {
	v := loadVector[clientVector](f, "libzmq-client.json")
	before, _ := v.server(f)
	f.Add(v.Hello)
	f.Add(v.Initiate)
	f.Fuzz(func(t *testing.T, command []byte) {
		h := before
		welcome, err := h.Hello(command)
		checkOutcome(t, err)
		if err == nil && len(welcome) != 168 {
			t.Errorf("WELCOME of %d bytes", len(welcome))
		}
	})
}

func FuzzWelcome(f *testing.F) {
	v := loadVector[serverVector](f, "libzmq-server.json")
	before, _ := v.client(f)
	f.Add(v.Welcome, []byte{})
	f.Add(Reject("400"), bytes.Repeat([]byte{9}, 128))
	f.Fuzz(func(t *testing.T, command, text []byte) {
		h := before
		checkOutcome(t, h.Welcome(command))
		h = before
		checkOutcome(t, h.Welcome(sealLong([]byte(welcome), "WELCOME-", text, h.server)))
	})
}

func FuzzInitiate(f *testing.F) {
	v := loadVector[clientVector](f, "libzmq-client.json")
	_, between := v.server(f)
	transient, secret, ok := between.server.jar.open(v.Initiate[9:105])
	if !ok {
		f.Fatal("the cookie does not open")
	}
	shared, err := secret.shared(&transient)
	if err != nil {
		f.Fatal(err)
	}
	_, text, ok := openShort(v.Initiate[105:], "CurveZMQINITIATE", shared)
	if !ok {
		f.Fatal("INITIATE does not open")
	}
	f.Add(v.Initiate, text)
	f.Add(v.Hello, text[:128])
	f.Fuzz(func(t *testing.T, command, text []byte) {
		h := between
		_, _, err := h.Initiate(command)
		checkOutcome(t, err)
		h = between
		_, metadata, err := h.Initiate(sealShort(bytes.Clone(v.Initiate[:105]), "CurveZMQINITIATE", 2, text, shared))
		checkOutcome(t, err)
		checkMetadata(t, metadata)
	})
}

func FuzzReady(f *testing.F) {
	v := loadVector[serverVector](f, "libzmq-server.json")
	_, between := v.client(f)
	_, text, ok := openShort(v.Ready[6:], "CurveZMQREADY---", between.shared)
	if !ok {
		f.Fatal("READY does not open")
	}
	f.Add(v.Ready, text)
	f.Add(Reject("400"), []byte("\x01a\x00\x00\x00\x00\x01A\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, command, text []byte) {
		h := between
		_, _, err := h.Ready(command)
		checkOutcome(t, err)
		h = between
		metadata, _, err := h.Ready(sealShort([]byte(ready), "CurveZMQREADY---", 1, text, h.shared))
		checkOutcome(t, err)
		checkMetadata(t, metadata)
	})
}

func FuzzMessage(f *testing.F) {
	v := loadVector[serverVector](f, "libzmq-server.json")
	_, between := v.client(f)
	_, session, err := between.Ready(v.Ready)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(v.Message, byte(Command), []byte("\x04PING\x00\x00"))
	f.Add(v.Ready, byte(More), bytes.Repeat([]byte{1}, 300))
	f.Fuzz(func(t *testing.T, command []byte, flags byte, payload []byte) {
		s := *session
		_, _, err := s.Open(nil, command)
		checkOutcome(t, err)

		s = *session
		s.sealing, s.sealed = s.opening, s.opened // to itself
		command, err = s.Seal(nil, flags, payload)
		if err != nil {
			return
		}
		gotFlags, got, err := s.Open(command[Overhead:Overhead], command)
		if err != nil || gotFlags != flags || !bytes.Equal(got, payload) {
			t.Errorf("flags %d, %q, error %v; want flags %d, %q", gotFlags, got, err, flags, payload)
		}
	})
}

// checkOutcome wants an error that the caller can count.
func checkOutcome(t *testing.T, err error) {
	t.Helper()
	switch err := err.(type) {
	case nil, *Rejection:
	case *Refusal:
		if err.Command == "" || err.Reason == "" || err.Detail == "" || len(err.Error()) > 300 {
			t.Errorf("refused without a word: %#v", err)
		}
	default:
		t.Errorf("error %v; want a refusal", err)
	}
}

func checkMetadata(t *testing.T, metadata Metadata) {
	t.Helper()
	if data, err := metadata.encode(); err != nil {
		t.Errorf("%q was taken and is not given: %v", metadata, err)
	} else if again, err := parseMetadata(data); err != nil || len(again) != len(metadata) {
		t.Errorf("%q comes back as %q, error %v", metadata, again, err)
	}
}
