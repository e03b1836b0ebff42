package curve

import (
	"bytes"
	"fmt"
)

// Server holds what all connections of a server share: its long-term key and the
// key of its cookies. Many goroutines may use it at once.
type Server struct {
	secret SecretKey
	public PublicKey
	jar    cookieJar
}

// NewServer makes a Server of its long-term key.
func NewServer(secret SecretKey) *Server {
	return &Server{secret: secret, public: secret.Public()}
}

// Handshake begins a connection.
func (s *Server) Handshake() *ServerHandshake { return &ServerHandshake{server: s} }

// ServerHandshake is one connection until it has its session. Call Hello,
// Initiate and Ready once each, in this order, from one goroutine at a time.
// Until a valid INITIATE it holds no key.
type ServerHandshake struct {
	server *Server
	stage  stage
	count  uint64              // the client's last short nonce
	cookie [longNonceSize]byte // the long nonce, and so the name, of the cookie that was given
	shared *[keySize]byte      // since INITIATE, of the transient keys
}

// Hello takes HELLO and gives WELCOME.
func (h *ServerHandshake) Hello(command []byte) ([]byte, error) {
	if err := h.stage.leave(atHello, hello); err != nil {
		return nil, err
	}
	if err := expect(command, hello, helloSize, helloSize); err != nil {
		return nil, err
	}
	version, padding, key, sealed := command[6:8], command[8:80], command[80:112], command[112:]
	if !bytes.Equal(version, []byte{1, 0}) {
		return nil, refuse(hello, BadVersion, "version %d.%d, not 1.0", version[0], version[1])
	}
	if !zero(padding) {
		return nil, refuse(hello, BadPadding, "the padding is not zero")
	}
	client := PublicKey(key)
	shared, err := h.server.secret.shared(&client)
	if err != nil {
		return nil, refuse(hello, BadKey, "transient key: %v", err)
	}
	count, plain, ok := openShort(sealed, "CurveZMQHELLO---", shared)
	if !ok || !zero(plain) {
		return nil, refuse(hello, BadBox, "the box does not open; the client may have another server's key")
	}

	public, secret, err := NewKeyPair()
	if err != nil {
		return nil, err
	}
	cookie := h.server.jar.bake(&client, secret)
	h.count, h.cookie, h.stage = count, [longNonceSize]byte(cookie[:]), atInitiate
	return sealLong([]byte(welcome), "WELCOME-", append(public[:], cookie[:]...), shared), nil
}

// Initiate takes INITIATE. After it the client has shown that it holds the
// secret half of the key given here. Whether that key may come in is for the
// caller to say: with Ready, or by closing the connection.
func (h *ServerHandshake) Initiate(command []byte) (PublicKey, Metadata, error) {
	key, metadata, err := h.initiate(command)
	if err != nil {
		return PublicKey{}, nil, err
	}
	h.stage = atReady
	return key, metadata, nil
}

func (h *ServerHandshake) initiate(command []byte) (key PublicKey, metadata Metadata, err error) {
	if err := h.stage.leave(atInitiate, initiate); err != nil {
		return key, nil, err
	}
	if err := expect(command, initiate, initiateSize, commandLimit); err != nil {
		return key, nil, err
	}
	cookie, sealed := command[9:105], command[105:]
	// The cookie of another connection opens too, and with it that connection's
	// recorded INITIATE and messages could be played again here.
	if !bytes.Equal(cookie[:longNonceSize], h.cookie[:]) {
		return key, nil, refuse(initiate, BadCookie, "the cookie was not given to this connection")
	}
	transient, secret, ok := h.server.jar.open(cookie)
	if !ok {
		return key, nil, refuse(initiate, BadCookie, "the cookie has expired or was changed")
	}
	shared, err := secret.shared(&transient)
	if err != nil {
		return key, nil, refuse(initiate, BadKey, "transient key: %v", err)
	}
	count, plain, ok := openShort(sealed, "CurveZMQINITIATE", shared)
	if !ok {
		return key, nil, refuse(initiate, BadBox, "the box does not open")
	}
	if count != h.count+1 || count == 0 {
		return key, nil, refuse(initiate, BadNonce, "short nonce %d after %d", count, h.count)
	}

	key = PublicKey(plain[:32])
	if err := h.vouched(plain[32:128], &key, &transient, secret); err != nil {
		return key, nil, err
	}
	if metadata, err = parseMetadata(plain[128:]); err != nil {
		return key, nil, refuse(initiate, BadMetadata, "%v", err)
	}
	h.count, h.shared = count, shared
	return key, metadata, nil
}

// vouched checks that the holder of key made this transient key to talk to this
// server.
func (h *ServerHandshake) vouched(vouch []byte, key, transient *PublicKey, secret SecretKey) error {
	shared, err := secret.shared(key)
	if err != nil {
		return refuse(initiate, BadKey, "long-term key: %v", err)
	}
	plain, ok := openLong(vouch, "VOUCH---", shared)
	if !ok {
		return refuse(initiate, BadVouch, "the vouch does not open: the client lacks the secret of its key")
	}
	if !bytes.Equal(plain[:32], transient[:]) || !bytes.Equal(plain[32:], h.server.public[:]) {
		return refuse(initiate, BadVouch, "the vouch is for another connection or server")
	}
	return nil
}

// Ready lets the client in: it gives READY, to be sent before anything that the
// session seals. The error is about our metadata.
func (h *ServerHandshake) Ready(metadata Metadata) ([]byte, *Session, error) {
	if err := h.stage.leave(atReady, ready); err != nil {
		return nil, nil, err
	}
	plain, err := metadata.encode()
	if err != nil {
		return nil, nil, fmt.Errorf("curve: READY: %w", err)
	}
	const count = 1
	command := sealShort([]byte(ready), "CurveZMQREADY---", count, plain, h.shared)
	return command, &Session{
		sealing: newCipher(h.shared, "CurveZMQMESSAGES"), sealed: count,
		opening: newCipher(h.shared, "CurveZMQMESSAGEC"), opened: h.count,
	}, nil
}
