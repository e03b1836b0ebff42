package curve

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"golang.org/x/crypto/nacl/secretbox"
)

// exchange is a handshake in slow motion: each command, and each side as it was
// before it took or gave that command.
type exchange struct {
	server *Server
	client *Client

	hello, welcome, initiate, ready []byte

	atHello    ServerHandshake
	atWelcome  ClientHandshake
	atInitiate ServerHandshake
	atVouch    ClientHandshake // before it gives INITIATE
	atReady    ClientHandshake

	serverSession, clientSession Session
}

var dealer = Metadata{"Socket-Type": "DEALER", "Identity": "web-1"}

func newExchange(t testing.TB) *exchange {
	t.Helper()
	public, serverSecret := newPair(t)
	clientPublic, clientSecret := newPair(t)
	e := &exchange{server: NewServer(serverSecret), client: NewClient(clientSecret, public)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	client, server := e.client.Handshake(), e.server.Handshake()
	var err error
	e.hello, err = client.Hello()
	must(err)
	e.atHello = *server
	e.welcome, err = server.Hello(e.hello)
	must(err)
	e.atWelcome = *client
	must(client.Welcome(e.welcome))
	e.atVouch = *client
	e.initiate, err = client.Initiate(dealer)
	must(err)
	e.atInitiate = *server
	key, metadata, err := server.Initiate(e.initiate)
	must(err)
	if key != clientPublic || len(metadata) != 2 || metadata["Socket-Type"] != "DEALER" || metadata["Identity"] != "web-1" {
		t.Fatalf("key %v, metadata %q", key, metadata)
	}
	var session *Session
	e.ready, session, err = server.Ready(Metadata{"socket-type": "ROUTER"})
	must(err)
	e.serverSession = *session
	e.atReady = *client
	metadata, session, err = client.Ready(e.ready)
	must(err)
	if len(metadata) != 1 || metadata["Socket-Type"] != "ROUTER" {
		t.Fatalf("metadata %q", metadata)
	}
	e.clientSession = *session
	return e
}

func TestExchange(t *testing.T) {
	e := newExchange(t)
	for _, c := range []struct {
		name           string
		command        []byte
		size, nonce    int
		wantSize, want uint64
	}{
		{"HELLO", e.hello, len(e.hello), 112, 200, 1},
		{"INITIATE", e.initiate, len(e.initiate), 105, 257 + 1 + 11 + 4 + 6 + 1 + 8 + 4 + 5, 2},
		{"READY", e.ready, len(e.ready), 6, 30 + 1 + 11 + 4 + 6, 1},
	} {
		if got := binary.BigEndian.Uint64(c.command[c.nonce:]); got != c.want || uint64(c.size) != c.wantSize {
			t.Errorf("%s of %d bytes with nonce %d; want %d with %d", c.name, c.size, got, c.wantSize, c.want)
		}
		if name, _ := Split(c.command); name != c.name {
			t.Errorf("%s is called %q", c.name, name)
		}
	}
	if len(e.welcome) != 168 || len(e.welcome) >= len(e.hello) {
		t.Errorf("WELCOME of %d bytes", len(e.welcome))
	}

	pairs := []struct{ from, to *Session }{{&e.clientSession, &e.serverSession}, {&e.serverSession, &e.clientSession}}
	for i := range 10 {
		for _, pair := range pairs {
			for _, flags := range []byte{0, More, Command} {
				payload := bytes.Repeat([]byte{byte(i)}, 100*i)
				command, err := pair.from.Seal(nil, flags, payload)
				if err != nil {
					t.Fatal(err)
				}
				gotFlags, got, err := pair.to.Open(nil, command)
				if err != nil || gotFlags != flags || !bytes.Equal(got, payload) {
					t.Fatalf("flags %d, %d bytes, error %v; want flags %d, %d bytes", gotFlags, len(got), err, flags, len(payload))
				}
			}
		}
	}
}

func TestHandshakesDifferEachTime(t *testing.T) {
	e := newExchange(t)
	h := e.client.Handshake()
	hello, err := h.Hello()
	if err != nil || bytes.Equal(hello[80:112], e.hello[80:112]) {
		t.Errorf("same transient key again, error %v", err)
	}
	again := e.atHello
	welcome, err := again.Hello(e.hello)
	if err != nil || bytes.Equal(welcome[8:], e.welcome[8:]) || again.cookie == e.atInitiate.cookie {
		t.Errorf("same cookie again, error %v", err)
	}
}

var sizes = func() (sizes []int) {
	for n := range 600 {
		sizes = append(sizes, n)
	}
	return append(sizes, 4095, 4096, 65536, 100001)
}()

// MESSAGE is what NaCl's secretbox makes, whatever its size, at whatever place.
func TestMessageIsSecretbox(t *testing.T) {
	e := newExchange(t)
	s, o := e.clientSession, e.serverSession
	for _, n := range sizes {
		payload := bytes.Repeat([]byte("muster"), n/6+1)[:n]
		command, err := s.Seal([]byte("before"), More, payload)
		if err != nil {
			t.Fatal(err)
		}
		command, found := bytes.CutPrefix(command, []byte("before"))
		if !found {
			t.Fatalf("%d bytes: what was before is gone", n)
		}
		var count [8]byte
		binary.BigEndian.PutUint64(count[:], s.sealed)
		want := secretbox.Seal(append([]byte("\x07MESSAGE"), count[:]...),
			append([]byte{More}, payload...), nonce("CurveZMQMESSAGEC", count[:]), e.atReady.shared)
		if !bytes.Equal(command, want) {
			t.Fatalf("%d bytes: not a secretbox", n)
		}

		place := make([]byte, 3+Overhead+n)
		copy(place[3+Overhead:], payload)
		s.sealed--
		inPlace, err := s.Seal(place[:3], More, place[3+Overhead:])
		if err != nil || !bytes.Equal(inPlace[3:], want) || &inPlace[0] != &place[0] {
			t.Fatalf("%d bytes: another MESSAGE in place, error %v", n, err)
		}

		flags, got, err := o.Open([]byte("before"), command)
		if err != nil || flags != More || string(got) != "before"+string(payload) {
			t.Fatalf("%d bytes: flags %d, %q, error %v", n, flags, got, err)
		}
		o.opened--
		flags, got, err = o.Open(command[Overhead:Overhead], command)
		if err != nil || flags != More || !bytes.Equal(got, payload) {
			t.Fatalf("%d bytes in place: flags %d, %q, error %v", n, flags, got, err)
		}
	}
}

func TestSessionDoesNotAllocate(t *testing.T) {
	e := newExchange(t)
	for _, n := range []int{0, 100, 65536} {
		payload, command, back := make([]byte, n), make([]byte, 0, n+Overhead), make([]byte, 0, n)
		if got := testing.AllocsPerRun(100, func() {
			command, _ = e.clientSession.Seal(command[:0], 0, payload)
			if _, _, err := e.serverSession.Open(back, command); err != nil {
				t.Fatal(err)
			}
		}); got != 0 {
			t.Errorf("%d bytes: %v allocations", n, got)
		}
	}
}

func TestNoncesEnd(t *testing.T) {
	e := newExchange(t)
	s, o := e.clientSession, e.serverSession
	s.sealed, o.opened = math.MaxUint64-1, math.MaxUint64-1
	command, err := s.Seal(nil, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := o.Open(nil, command); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Seal([]byte("x"), 0, nil); !errors.Is(err, ErrSpent) || string(got) != "x" {
		t.Errorf("%q, error %v; want ErrSpent", got, err)
	}
	command = make([]byte, Overhead) // with the nonce 0, as a peer might go on
	copy(command, message)
	s.sealing.seal((*[16]byte)(command[16:]), command[32:], 0, 0, nil)
	if _, _, err := o.Open(nil, command); !refused(err, BadNonce) {
		t.Errorf("error %v; want a refusal of the nonce", err)
	}
}

func TestSealRefusesFlagsThatNoFrameHas(t *testing.T) {
	e := newExchange(t)
	for _, flags := range []byte{More | Command, 4, 0x80} {
		if _, err := e.clientSession.Seal(nil, flags, nil); err == nil {
			t.Errorf("flags %#x are sealed", flags)
		}
	}
	if command, err := e.clientSession.Seal(nil, 0, nil); err != nil {
		t.Error(err)
	} else if _, _, err := e.serverSession.Open(nil, command); err != nil {
		t.Errorf("the refused ones cost a nonce: %v", err)
	}
}

func TestMethodsOutOfOrder(t *testing.T) {
	e := newExchange(t)
	server := func() *ServerHandshake { return e.server.Handshake() }
	client := func() *ClientHandshake { return e.client.Handshake() }
	check := func(what string, err error) {
		t.Helper()
		if !refused(err, BadOrder) {
			t.Errorf("%s: error %v; want a refusal of the order", what, err)
		}
	}
	_, _, err := server().Initiate(e.initiate)
	check("INITIATE before HELLO", err)
	_, _, err = server().Ready(nil)
	check("READY before HELLO", err)
	err = client().Welcome(e.welcome)
	check("WELCOME before HELLO", err)
	_, err = client().Initiate(nil)
	check("INITIATE before HELLO", err)
	_, _, err = client().Ready(e.ready)
	check("READY before HELLO", err)

	s, c := e.atInitiate, e.atWelcome
	_, err = s.Hello(e.hello)
	check("HELLO twice", err)
	_, _, err = s.Initiate(e.initiate)
	check("INITIATE after a refusal", err)
	_, _, err = c.Ready(e.ready)
	check("READY before INITIATE", err)
	err = c.Welcome(e.welcome)
	check("WELCOME after a refusal", err)

	s = e.atInitiate
	if _, _, err := s.Initiate(e.initiate); err != nil {
		t.Fatal(err)
	}
	if _, _, err = s.Ready(nil); err != nil {
		t.Fatal(err)
	}
	_, _, err = s.Ready(nil)
	check("READY twice", err)
}

func TestRejection(t *testing.T) {
	e := newExchange(t)
	for _, reason := range []string{"", "400", "this key is revoked"} {
		w, r := e.atWelcome, e.atReady
		_, _, readyErr := r.Ready(Reject(reason))
		for _, err := range []error{w.Welcome(Reject(reason)), readyErr} {
			if rejection, ok := errors.AsType[*Rejection](err); !ok || rejection.Reason != reason {
				t.Errorf("error %v; want the rejection %q", err, reason)
			}
		}
	}
	for _, command := range []string{"\x05ERROR", "\x05ERROR\x04400", "\x05ERROR\x02400"} {
		w := e.atWelcome
		if err := w.Welcome([]byte(command)); !refused(err, BadName) {
			t.Errorf("%q: error %v; want a refusal of the name", command, err)
		}
	}
	if got := len(Reject(string(make([]byte, 300)))); got != 7+255 {
		t.Errorf("ERROR of %d bytes", got)
	}
}

func TestServerKeyThatNoServerHas(t *testing.T) {
	_, secret := newPair(t)
	if _, err := NewClient(secret, PublicKey{}).Handshake().Hello(); !errors.Is(err, errLowOrder) {
		t.Errorf("error %v", err)
	}
}

func TestOurOwnBadMetadata(t *testing.T) {
	e := newExchange(t)
	for _, metadata := range []Metadata{
		{"a b": ""},
		{"Identity": "a", "identity": "b"},
		{"Identity": string(make([]byte, metadataLimit-12))},
	} {
		c := e.atVouch
		if command, err := c.Initiate(metadata); err == nil {
			t.Errorf("INITIATE of %d bytes goes out with %.100q", len(command), metadata)
		}
	}
	c := e.atVouch
	if command, err := c.Initiate(Metadata{"Identity": string(make([]byte, metadataLimit-13))}); err != nil || len(command) != commandLimit {
		t.Errorf("INITIATE of %d bytes, error %v; want all that fits", len(command), err)
	} else if s := e.atInitiate; true {
		if _, _, err := s.Initiate(command); err != nil {
			t.Error(err)
		}
	}
	s := e.atInitiate
	if _, _, err := s.Initiate(e.initiate); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Ready(Metadata{"": ""}); err == nil {
		t.Error("an empty name is sent")
	}
}

func TestSplitAndJoin(t *testing.T) {
	for _, c := range []struct{ command, name, rest string }{
		{"", "", ""},
		{"\x00", "", ""},
		{"\x05READ", "", "\x05READ"},
		{"\x05READY", "READY", ""},
		{"\x05READYabc", "READY", "abc"},
	} {
		name, rest := Split([]byte(c.command))
		if name != c.name || string(rest) != c.rest {
			t.Errorf("%q is split to %q, %q", c.command, name, rest)
		}
	}
	if got := string(Join("READY", []byte("abc"))); got != "\x05READYabc" {
		t.Errorf("joined to %q", got)
	}
}
