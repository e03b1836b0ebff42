package e2e

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
)

// network is another host, as far as the kernel is concerned: a network
// namespace with a link to this one.
type network struct {
	t           *testing.T
	name        string // of the namespace
	here, there string // addresses
}

// newNetwork needs root. The namespace, and whoever is still in it, goes with
// the test.
func newNetwork(t *testing.T) *network {
	t.Helper()
	tag := rand.Uint32()
	subnet := fmt.Sprintf("198.18.%d.%d", tag>>8&0xff, tag&0xfc) // a range for tests (RFC 2544)
	base := subnet[:strings.LastIndex(subnet, ".")+1]
	n := &network{
		t: t, name: fmt.Sprintf("muster-%08x", tag),
		here: base + fmt.Sprint(tag&0xfc+1), there: base + fmt.Sprint(tag&0xfc+2),
	}
	link, peer := fmt.Sprintf("mu%08xa", tag), fmt.Sprintf("mu%08xb", tag)
	n.ip("netns", "add", n.name)
	t.Cleanup(n.remove)
	n.ip("link", "add", link, "type", "veth", "peer", "name", peer, "netns", n.name) // goes with the namespace
	n.ip("address", "add", n.here+"/30", "dev", link)
	n.ip("link", "set", link, "up")
	n.ip("-n", n.name, "address", "add", n.there+"/30", "dev", peer)
	n.ip("-n", n.name, "link", "set", peer, "up")
	n.ip("-n", n.name, "link", "set", "lo", "up")
	return n
}

func (n *network) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s(this test needs root, for a network namespace)", strings.Join(args, " "), err, out)
	}
}

func (n *network) remove() {
	exec.Command("sh", "-c", `kill -9 $(ip netns pids "$0") 2>/dev/null`, n.name).Run() // usually nobody is left
	if out, err := exec.Command("ip", "netns", "delete", n.name).CombinedOutput(); err != nil {
		n.t.Errorf("ip netns delete %s: %v: %s", n.name, err, out)
	}
}

// start runs a shell command over there. Our programs are in its PATH.
func (n *network) start(name, command string) *process {
	n.t.Helper()
	return startProcess(n.t, name, exec.Command("ip", "netns", "exec", n.name, "sh", "-c", `PATH="$0:$PATH"; exec `+command, bin))
}
