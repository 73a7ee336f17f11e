// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	protocol "github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
)

// sendAsRouter sends a payload several times from the router's address with the kernel's TTL.
func (l *lab) sendAsRouter(to string, port, times int, payload []byte) {
	l.t.Helper()
	var octets strings.Builder
	for _, octet := range payload {
		fmt.Fprintf(&octets, `\x%02x`, octet)
	}
	script := fmt.Sprintf("exec 3>/dev/udp/%s/%d; for ((i = 0; i < %d; i++)); do printf '%s' >&3; done", to, port, times, octets.String())
	if out, err := exec.Command("ip", "netns", "exec", l.RouterSpace, "bash", "-c", script).CombinedOutput(); err != nil {
		l.t.Fatalf("send to %s port %d: %v: %s", to, port, err, out)
	}
}

// queued returns the number of octets queued at a process's UDP port (/proc/net/udp, proc(5)).
func (p *process) queued(table string, port int) (octets int64, found bool) {
	p.t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.cmd.Process.Pid, table))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			_, waiting, _ := strings.Cut(fields[4], ":")
			octets, err := strconv.ParseInt(waiting, 16, 64)
			return octets, err == nil
		}
	}
	return 0, false
}

// Packets from off the link are not queued, where they would displace the router's.
func TestFloodFromOffLink(t *testing.T) {
	const packets = 300
	l := newLab(t)
	p := l.start(l.NodeSpace, "node")
	p.Set(control.Want{Peers: peers()[:2]})
	flood := protocol.Packet{State: protocol.Down, DetectMultiplier: 3, MyDiscriminator: 5}.Append(nil)
	for table, to := range map[string]string{"udp": nodeIPv4.String(), "udp6": nodeIPv6.String()} {
		await(t, upWithin, "the port is open", func() (bool, any) {
			_, found := p.queued(table, 3784)
			return found, table
		})
		p.signal(syscall.SIGSTOP)
		l.sendAsRouter(to, 3784, packets, flood)
		if octets, _ := p.queued(table, 3784); octets > 0 {
			t.Errorf("%s: %d bytes of the flood remain in the receive queue", to, octets)
		}
		p.signal(syscall.SIGCONT)
	}
	await(t, countedWithin, "all of it is counted", func() (bool, any) {
		report, _ := p.Report()
		return report.Discarded["socket"] == 2*packets, report.Discarded
	})
}

// A packet with the router's source address is not sufficient to reset a multihop session.
func TestSpoofedMultihop(t *testing.T) {
	l := newFRRLab(t, frrPeers)
	p := l.start(l.NodeSpace, "node")
	p.Set(control.Want{Peers: peers()[2:3]})
	up := p.awaitState(multihop4, protocol.Up)
	for _, state := range []protocol.State{protocol.Down, protocol.AdminDown} {
		spoofed := protocol.Packet{State: state, DetectMultiplier: 3, MyDiscriminator: 5, DesiredMinTx: 1000 * ms, RequiredMinRx: 1000 * ms}
		l.sendAsRouter(nodeIPv4.String(), 4784, 1, spoofed.Append(nil))
	}
	await(t, countedWithin, "the spoofed packets are discarded", func() (bool, any) {
		report, _ := p.Report()
		return report.Discarded["other_discriminator"] >= 2, report
	})
	if session := p.session(multihop4); session.State != protocol.Up || !session.Since.Equal(up.Since) {
		t.Errorf("the session changed from %+v to %+v", up, session)
	}
}
