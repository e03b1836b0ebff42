package bus_test

import (
	"testing"
	"testing/synctest"
	"time"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"

	"github.com/musterhq/muster/bus"
)

// What becomes of each recorded stream: the reason for which it is refused, or
// served.
var streams = []struct {
	test, name, want string
}{
	{"C001", "bad-http", "greeting"},
	{"C001", "bad-tls-hello", "greeting"},
	{"C001", "bad-header-byte", "greeting"},
	{"C001", "bad-footer-byte", "greeting"},
	{"C005", "old-1-0-unversioned", "greeting"},
	{"C005", "old-2-0", "version"},
	{"C006", "good-null-dealer", "served"},
	{"C006", "good-31-padded", "served"},
	{"C006", "good-version-4-0", "served"},
	{"C007", "mech-PLAIN", "mechanism"},
	{"C007", "mech-curve", "mechanism"},
	{"C007", "mech-CURVE_X", "mechanism"},
	{"C007", "mech-empty", "mechanism"},
	{"C007", "mech-NULL_CURVE", "mechanism"},
	{"C007", "as-server-1", "as_server"},
	{"C008", "ready-dup-identity", "metadata"},
	{"C008", "ready-dup-case", "metadata"},
	{"C008", "ready-no-type", "socket_type"},
	{"C008", "ready-type-unknown", "socket_type"},
	{"C008", "ready-type-pub", "socket_type"},
	{"C009", "prehandshake-len-2p31", "handshake_size"},
	{"C009", "prehandshake-len-2p62", "handshake_size"},
	{"C010", "frame-len-2p34", "frame_size"},
	{"C010", "frame-len-2p40", "frame_size"},
	{"C010", "frame-len-2p48", "frame_size"},
	{"C010", "frame-len-2p62", "frame_size"},
	{"C010", "frame-len-2p63", "frame_size"},
	{"C010", "frame-len-2p63m1", "frame_size"},
	{"C012", "empty-frame", "served"}, // after a Nack
	{"C013", "frames-10000", "frame_count"},
	{"C015", "ping-storm-1000", "served"},
	{"C015", "ping-ttl-5", "silent"},
	{"C016", "cmd-unknown", "served"},
	{"C016", "cmd-subscribe", "served"},
	{"C016", "cmd-ready-again", "command_misplaced"},
	{"C016", "cmd-error", "command_misplaced"},
	{"C016", "cmd-with-more", "command_more"},
	{"C016", "flags-f8", "flags"},
	{"C016", "data-before-ready", "handshake_frame"},
	{"C019", "identity-empty", "served"},
	{"C019", "identity-zero-led", "identity"},
	{"C019", "identity-255", "served"},
	{"C019", "identity-256", "identity"},
	{"C019", "identity-300", "identity"},
	{"C019", "identity-fffe", "served"},
	{"C019", "identity-dotdot", "served"}, // a hint: never a name of anything
	{"C019", "identity-newline-esc", "served"},
}

func TestRecordedStreams(t *testing.T) {
	for _, c := range streams {
		t.Run(c.test+"/"+c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStation(t, bus.Config{})
				good := s.enter()
				r := s.knock(stream(t, c.name))
				if c.want == "served" {
					r.welcome()
					r.served()
				} else {
					start := time.Now()
					r.closed(10 * time.Second)
					synctest.Wait()
					if took := time.Since(start); took > 2*time.Second {
						t.Errorf("refused after %v", took)
					}
					if s.refused(c.want) != 1 {
						t.Errorf("not counted as %q", c.want)
					}
				}
				if n := s.heardOf(&musterv1.Register{}); n != 0 {
					t.Errorf("%d registrations, want none", n)
				}
				good.served()
			})
		})
	}
}
