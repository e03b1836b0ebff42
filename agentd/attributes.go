package agentd

import (
	"net"
	"os"
	"runtime"
	"strings"

	musterv1 "github.com/musterhq/muster/proto/muster/v1"
)

// attributes describes this process and its machine.
func attributes(version string) *musterv1.Attributes {
	host, _ := os.Hostname()
	return &musterv1.Attributes{
		Version:   version,
		Hostname:  strings.ToValidUTF8(host, "?"),
		Os:        runtime.GOOS,
		Arch:      runtime.GOARCH,
		MachineId: machineID(),
		Pid:       uint32(os.Getpid()),
		Extras:    map[string]string{},
	}
}

func machineID() string {
	for _, file := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if b, err := os.ReadFile(file); err == nil {
			return strings.ToValidUTF8(strings.TrimSpace(string(b)), "?")
		}
	}
	return ""
}

// localIP is the address that this machine uses towards remote. Nothing is
// sent: "connecting" a datagram socket only asks the routing table.
func localIP(remote net.Addr) string {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return ""
	}
	c, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: tcp.IP, Port: tcp.Port, Zone: tcp.Zone})
	if err != nil {
		return ""
	}
	defer c.Close()
	if local, ok := c.LocalAddr().(*net.UDPAddr); ok {
		return local.IP.String()
	}
	return ""
}
