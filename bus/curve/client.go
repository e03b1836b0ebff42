package curve

import "fmt"

// Client holds what all connections of a client to one server share: the
// client's long-term key and the server's. Many goroutines may use it at once.
type Client struct {
	secret SecretKey
	public PublicKey
	server PublicKey
}

// NewClient makes a Client. The server's key must be known beforehand; it is all
// that tells the server from an impostor.
func NewClient(secret SecretKey, server PublicKey) *Client {
	return &Client{secret: secret, public: secret.Public(), server: server}
}

// Handshake begins a connection.
func (c *Client) Handshake() *ClientHandshake { return &ClientHandshake{client: c} }

// ClientHandshake is one connection until it has its session. Call Hello,
// Welcome, Initiate and Ready once each, in this order, from one goroutine at a
// time.
type ClientHandshake struct {
	client *Client
	stage  stage
	count  uint64 // our last short nonce

	public PublicKey // our transient key pair
	secret SecretKey

	server *[keySize]byte   // shared by our transient key and the server's long-term key
	vouch  *[keySize]byte   // shared by our long-term key and the server's transient key
	shared *[keySize]byte   // shared by the transient keys
	cookie [cookieSize]byte // to be given back
}

// Hello gives HELLO. The error is about the server's key, if it is one that no
// server can have.
func (h *ClientHandshake) Hello() ([]byte, error) {
	if err := h.stage.leave(atHello, hello); err != nil {
		return nil, err
	}
	var err error
	if h.public, h.secret, err = NewKeyPair(); err != nil {
		return nil, err
	}
	if h.server, err = h.secret.shared(&h.client.server); err != nil {
		return nil, fmt.Errorf("curve: the server's key %v: %w", h.client.server, err)
	}
	command := make([]byte, 80, helloSize)
	copy(command, hello+"\x01\x00") // version 1.0, then padding
	command = append(command, h.public[:]...)
	h.count++
	h.stage = atWelcome
	return sealShort(command, "CurveZMQHELLO---", h.count, make([]byte, 64), h.server), nil
}

// Welcome takes WELCOME. After it the server has shown that it holds the secret
// half of its key. The error is a *Rejection if the server sent ERROR instead.
func (h *ClientHandshake) Welcome(command []byte) error {
	if err := h.stage.leave(atWelcome, welcome); err != nil {
		return err
	}
	if err := rejection(command); err != nil {
		return err
	}
	if err := expect(command, welcome, welcomeSize, welcomeSize); err != nil {
		return err
	}
	plain, ok := openLong(command[8:], "WELCOME-", h.server)
	if !ok {
		return refuse(welcome, BadBox, "the box does not open; the server may have another key")
	}
	transient := PublicKey(plain[:32])
	var err error
	if h.shared, err = h.secret.shared(&transient); err != nil {
		return refuse(welcome, BadKey, "transient key: %v", err)
	}
	if h.vouch, err = h.client.secret.shared(&transient); err != nil {
		return refuse(welcome, BadKey, "transient key: %v", err)
	}
	copy(h.cookie[:], plain[32:])
	h.stage = atInitiate
	return nil
}

// Initiate gives INITIATE. The error is about our metadata.
func (h *ClientHandshake) Initiate(metadata Metadata) ([]byte, error) {
	if err := h.stage.leave(atInitiate, initiate); err != nil {
		return nil, err
	}
	properties, err := metadata.encode()
	if err != nil {
		return nil, fmt.Errorf("curve: INITIATE: %w", err)
	}
	plain := append([]byte(nil), h.client.public[:]...)
	plain = sealLong(plain, "VOUCH---", append(h.public[:], h.client.server[:]...), h.vouch)
	plain = append(plain, properties...)
	command := append([]byte(initiate), h.cookie[:]...)
	h.count++
	h.stage = atReady
	return sealShort(command, "CurveZMQINITIATE", h.count, plain, h.shared), nil
}

// Ready takes READY and gives the server's metadata. The error is a *Rejection
// if the server sent ERROR instead.
func (h *ClientHandshake) Ready(command []byte) (Metadata, *Session, error) {
	if err := h.stage.leave(atReady, ready); err != nil {
		return nil, nil, err
	}
	if err := rejection(command); err != nil {
		return nil, nil, err
	}
	if err := expect(command, ready, readySize, commandLimit); err != nil {
		return nil, nil, err
	}
	count, plain, ok := openShort(command[6:], "CurveZMQREADY---", h.shared)
	if !ok {
		return nil, nil, refuse(ready, BadBox, "the box does not open")
	}
	metadata, err := parseMetadata(plain)
	if err != nil {
		return nil, nil, refuse(ready, BadMetadata, "%v", err)
	}
	return metadata, &Session{
		sealing: newCipher(h.shared, "CurveZMQMESSAGEC"), sealed: h.count,
		opening: newCipher(h.shared, "CurveZMQMESSAGES"), opened: count,
	}, nil
}
