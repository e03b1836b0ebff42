package curve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

var record = flag.Bool("record", false, "write what libzmq sends to testdata/libzmq.json")

// pythonClient is a DEALER with libzmq's CURVE that expects each message back.
const pythonClient = `
import sys, zmq
address, server, public, secret = sys.argv[1:]
s = zmq.Context().socket(zmq.DEALER)
s.linger, s.rcvtimeo, s.sndtimeo = 0, 10000, 10000
s.heartbeat_ivl = 50
s.identity = b"web-1"
s.curve_serverkey, s.curve_publickey, s.curve_secretkey = server.encode(), public.encode(), secret.encode()
s.connect(address)
s.recv() # comes after our first PING
for n in (0, 1, 31, 32, 94, 95, 96, 222, 223, 224, 255, 256, 1000, 65536, 100001):
    m = [b"muster.v1.Heartbeat", b"", bytes(i & 255 for i in range(n))]
    s.send_multipart(m)
    if s.recv_multipart() != m: sys.exit("another message came back")
`

// pythonServer is a DEALER, bound, with libzmq's CURVE that sends each message back.
const pythonServer = `
import sys, zmq
secret, = sys.argv[1:]
s = zmq.Context().socket(zmq.DEALER)
s.linger, s.rcvtimeo, s.sndtimeo = 0, 10000, 10000
s.heartbeat_ivl = 50
s.curve_server, s.curve_secretkey = True, secret.encode()
print(s.bind_to_random_port("tcp://127.0.0.1"), flush=True)
while True:
    m = s.recv_multipart()
    s.send_multipart(m)
    if m == [b"bye"]: break
sys.stdin.read()
`

// python starts a program of libzmq's side. It gives the first line that the
// program prints, if that is asked for, and a function that waits for its end.
func python(t *testing.T, program string, readLine bool, args ...string) (line string, wait func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", append([]string{"-c", program}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (this test needs Debian's python3-zmq)", err)
	}
	if readLine {
		if line, err = bufio.NewReader(stdout).ReadString('\n'); err != nil {
			cmd.Wait()
			t.Fatalf("python3 (this test needs Debian's python3-zmq): %v\n%s", err, &stderr)
		}
	}
	return strings.TrimSpace(line), func() {
		t.Helper()
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("python3 (this test needs Debian's python3-zmq): %v\n%s", err, &stderr)
		}
	}
}

// wire is as much ZMTP as the tests need.
type wire struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader

	first []byte // MESSAGE
}

// newWire exchanges greetings.
func newWire(t *testing.T, conn net.Conn, server byte) *wire {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	greeting := make([]byte, 64)
	copy(greeting, "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00CURVE")
	greeting[32] = server
	if _, err := conn.Write(greeting); err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, conn: conn, in: bufio.NewReader(conn)}
	if _, err := io.ReadFull(w.in, greeting); err != nil {
		t.Fatal(err)
	}
	if got := string(greeting[12:18]); got != "CURVE\x00" { // libzmq doesn't set as-server
		t.Fatalf("peer greets with %q", got)
	}
	return w
}

const (
	wireMore    = 1
	wireLong    = 2
	wireCommand = 4
)

func (w *wire) send(flags byte, body []byte) {
	w.t.Helper()
	frame := binary.BigEndian.AppendUint64([]byte{flags | wireLong}, uint64(len(body)))
	if _, err := w.conn.Write(append(frame, body...)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) receive() (flags byte, body []byte, err error) {
	header := make([]byte, 9)
	if _, err := io.ReadFull(w.in, header[:2]); err != nil {
		return 0, nil, err
	}
	size := uint64(header[1])
	if header[0]&wireLong != 0 {
		if _, err := io.ReadFull(w.in, header[2:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(header[1:])
	}
	if size > 1<<20 {
		return 0, nil, fmt.Errorf("frame of %d bytes", size)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(w.in, body)
	return header[0] &^ wireLong, body, err
}

func (w *wire) command() []byte {
	w.t.Helper()
	flags, body, err := w.receive()
	if err != nil || flags != wireCommand {
		w.t.Fatalf("flags %d, error %v; want a command", flags, err)
	}
	return body
}

// open opens the next MESSAGE.
func (w *wire) open(session *Session) (flags byte, payload []byte, err error) {
	outer, body, err := w.receive()
	if err != nil {
		return 0, nil, err
	}
	if outer != 0 {
		w.t.Fatalf("MESSAGE in a frame with flags %d", outer)
	}
	if w.first == nil {
		w.first = bytes.Clone(body)
	}
	flags, payload, err = session.Open(body[Overhead:Overhead], body)
	if flags == Command && bytes.HasPrefix(payload, []byte("\x04PING")) {
		const timeToLive = 2
		w.seal(session, Command, append([]byte("\x04PONG"), payload[5+timeToLive:]...))
	}
	return flags, payload, err
}

// waitPing reads commands until libzmq's first heartbeat, which it answers.
func (w *wire) waitPing(session *Session) {
	w.t.Helper()
	flags, payload, err := w.open(session)
	if err != nil || flags != Command || !bytes.HasPrefix(payload, []byte("\x04PING")) {
		w.t.Fatalf("flags %d, %q, error %v; want PING", flags, payload, err)
	}
}

// message reads the frames of one message.
func (w *wire) message(session *Session) (frames [][]byte, err error) {
	for {
		flags, payload, err := w.open(session)
		if err != nil {
			return nil, err
		}
		if flags == Command {
			continue
		}
		frames = append(frames, payload)
		if flags != More {
			return frames, nil
		}
	}
}

func (w *wire) seal(session *Session, flags byte, payload []byte) {
	w.t.Helper()
	command, err := session.Seal(nil, flags, payload)
	if err != nil {
		w.t.Fatal(err)
	}
	w.send(0, command)
}

func (w *wire) sendMessage(session *Session, frames ...[]byte) {
	w.t.Helper()
	for i, frame := range frames {
		flags := byte(More)
		if i == len(frames)-1 {
			flags = 0
		}
		w.seal(session, flags, frame)
	}
}

func newPair(t testing.TB) (PublicKey, SecretKey) {
	t.Helper()
	public, secret, err := NewKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	return public, secret
}

func TestLibzmqClientAtOurServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	serverPublic, serverSecret := newPair(t)
	clientPublic, clientSecret := newPair(t)
	_, wait := python(t, pythonClient, false,
		"tcp://"+ln.Addr().String(), serverPublic.String(), clientPublic.String(), clientSecret.Z85())
	ln.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Second))
	conn, err := ln.Accept()
	if err != nil {
		wait()
		t.Fatal(err)
	}

	server := NewServer(serverSecret)
	h := server.Handshake()
	w := newWire(t, conn, 1)
	hello := w.command()
	welcome, err := h.Hello(hello)
	if err != nil {
		t.Fatal(err)
	}
	cookieKey := bytes.Clone(server.jar.fresh[:])
	w.send(wireCommand, welcome)
	initiate := w.command()
	key, metadata, err := h.Initiate(initiate)
	if err != nil {
		t.Fatal(err)
	}
	if key != clientPublic {
		t.Errorf("client's key %v, want %v", key, clientPublic)
	}
	if metadata["Socket-Type"] != "DEALER" || metadata["Identity"] != "web-1" {
		t.Errorf("metadata %q", metadata)
	}
	ready, session, err := h.Ready(Metadata{"Socket-Type": "ROUTER"})
	if err != nil {
		t.Fatal(err)
	}
	w.send(wireCommand, ready)

	w.waitPing(session)
	w.sendMessage(session, []byte("go"))
	messages := 0
	for {
		frames, err := w.message(session)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		messages++
		w.sendMessage(session, frames...)
	}
	wait()
	if messages != 15 {
		t.Errorf("%d messages, want 15", messages)
	}
	if *record {
		saveVector(t, "libzmq-client.json", clientVector{
			ServerSecret: serverSecret.key().Bytes(), CookieKey: cookieKey, ClientKey: clientPublic[:],
			Hello: hello, Initiate: initiate, Message: w.first,
		})
	}
}

func TestOurClientAtLibzmqServer(t *testing.T) {
	serverPublic, serverSecret := newPair(t)
	_, clientSecret := newPair(t)
	port, wait := python(t, pythonServer, true, serverSecret.Z85())
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}

	h := NewClient(clientSecret, serverPublic).Handshake()
	w := newWire(t, conn, 0)
	hello, err := h.Hello()
	if err != nil {
		t.Fatal(err)
	}
	w.send(wireCommand, hello)
	welcome := w.command()
	if err := h.Welcome(welcome); err != nil {
		t.Fatal(err)
	}
	initiate, err := h.Initiate(Metadata{"Socket-Type": "DEALER", "Identity": "web-1", "X-Version": "1"})
	if err != nil {
		t.Fatal(err)
	}
	w.send(wireCommand, initiate)
	ready := w.command()
	metadata, session, err := h.Ready(ready)
	if err != nil {
		t.Fatal(err)
	}
	if metadata["Socket-Type"] != "DEALER" {
		t.Errorf("metadata %q", metadata)
	}

	w.waitPing(session)
	for _, n := range []int{0, 1, 31, 32, 94, 95, 96, 222, 223, 224, 255, 256, 1000, 65536, 100001} {
		sent := [][]byte{[]byte("muster.v1.Heartbeat"), {}, bytes.Repeat([]byte{byte(n)}, n)}
		w.sendMessage(session, sent...)
		got, err := w.message(session)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(got, sent, bytes.Equal) {
			t.Fatalf("another message came back for one of %d bytes", n)
		}
	}
	w.sendMessage(session, []byte("bye"))
	if _, err := w.message(session); err != nil {
		t.Fatal(err)
	}
	wait()
	if *record {
		saveVector(t, "libzmq-server.json", serverVector{
			ServerKey: serverPublic[:], TransientSecret: h.secret.key().Bytes(),
			Welcome: welcome, Ready: ready, Message: w.first,
		})
	}
}

func TestLibzmqClientWithWrongServerKey(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	other, _ := newPair(t)
	_, serverSecret := newPair(t)
	clientPublic, clientSecret := newPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", "-c", pythonClient,
		"tcp://"+ln.Addr().String(), other.String(), clientPublic.String(), clientSecret.Z85())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cancel()
	ln.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Second))
	conn, err := ln.Accept()
	if err != nil {
		t.Fatalf("%v (this test needs Debian's python3-zmq)", err)
	}
	w := newWire(t, conn, 1)
	if _, err := NewServer(serverSecret).Handshake().Hello(w.command()); !refused(err, BadBox) {
		t.Errorf("error %v; want a refusal of the box", err)
	}
}
