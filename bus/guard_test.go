package bus

import (
	"slices"
	"strings"
	"testing"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

func FuzzMetadata(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(appendProperty(appendProperty(nil, "Socket-Type", "DEALER"), "Identity", "a"))
	f.Add(appendProperty(appendProperty(nil, "SOCKET-TYPE", "DEALER"), "X-y", strings.Repeat("v", 300)))
	f.Add([]byte{1, 'x', 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, clean, err := parseMetadata(b, "DEALER")
		if err != nil {
			return
		}
		if m.socketType != "DEALER" || len(m.identity) > 255 || strings.HasPrefix(m.identity, "\x00") {
			t.Errorf("let %+v through", m)
		}
		again, same, err := parseMetadata(clean, "DEALER")
		if err != nil || again != m || !slices.Equal(same, clean) {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}

func FuzzEnvelope(f *testing.F) {
	mux := NewMux()
	p := &Peer{bus: newCore(Config{}, mux)}
	p.out.p = p
	p.out.closing = true // answers go nowhere
	Handle(mux, func(_ *Peer, env *musterv1.Envelope, m *musterv1.Register) error {
		if env == nil || m == nil {
			return ErrHangUp
		}
		return nil
	})
	f.Add([]byte("muster.v1.Register"), []byte{}, []byte{0x0a, 1, 'a'})
	f.Add([]byte("muster.v1.Nack"), []byte{0x0a, 1, 'x'}, []byte{8, 1})
	f.Add([]byte("muster.v1.Nobody"), []byte{0x22, 2, 0, 1}, []byte{})
	f.Fuzz(func(t *testing.T, typ, env, body []byte) {
		m := &message{buf: slices.Concat(typ, env, body), frames: 3}
		m.ends = [3]int{len(typ), len(typ) + len(env), len(m.buf)}
		if err := dispatch(p, m); err != nil {
			t.Errorf("ended the link: %v", err)
		}
	})
}
