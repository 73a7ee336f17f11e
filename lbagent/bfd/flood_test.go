// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package bfd

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	protocol "github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
)

const (
	// floodRate is in packets per second, floodFor the duration.
	floodRate = 90_000
	floodFor  = 4 * time.Second
)

// flood is the path of an untrusted host to the BFD port.
type flood struct {
	name     string
	from, to netip.Addr
	ttl      int
}

// A flood of the port, spoofed from off the link or from a host on it, resets no session. Both ends are ours,
// because another router's tolerance is not under test.
func TestFloodResetsNoSession(t *testing.T) {
	l := newLab(t)
	stranger4, stranger6 := netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8::9")
	l.Run("ip", "-n", l.RouterSpace, "address", "add", stranger4.String()+"/24", "dev", "eth0")
	l.Run("ip", "-n", l.RouterSpace, "address", "add", stranger6.String()+"/64", "dev", "eth0", "nodad")
	node, router := l.start(l.NodeSpace, "node"), l.start(l.RouterSpace, "router")
	wanted := peers()[:2]
	node.Set(control.Want{Peers: wanted})
	router.Set(control.Want{Peers: []control.Peer{
		{Name: routerName4, Address: nodeIPv4, Source: routerIPv4, Parameters: standard},
		{Name: routerName6, Address: nodeIPv6, Source: routerIPv6, Parameters: standard},
	}})
	for _, peer := range wanted {
		node.awaitState(peer.Name, protocol.Up)
		router.awaitState(peer.Name, protocol.Up)
		await(t, upWithin, "300 ms are negotiated", func() (bool, any) {
			session := node.session(peer.Name)
			return session.DetectionTime == 300*ms, session
		})
	}
	for _, f := range []flood{
		{"off the link, IPv4", routerIPv4, nodeIPv4, 254},
		{"an untrusted host, IPv4", stranger4, nodeIPv4, 255},
		{"off the link, IPv6", routerIPv6, nodeIPv6, 254},
		{"an untrusted host, IPv6", stranger6, nodeIPv6, 255},
	} {
		began := time.Now()
		sent, err := f.send(l.RouterSpace)
		if err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		t.Logf("%s: %.0f packets/s", f.name, float64(sent)/time.Since(began).Seconds())
		for _, peer := range wanted {
			for end, p := range map[string]*process{"node": node, "router": router} {
				if session := p.session(peer.Name); session.State != protocol.Up || session.Losses > 0 {
					t.Errorf("%s: at the %s: %+v", f.name, end, session)
				}
			}
		}
	}
}

func (f flood) send(namespace string) (sent int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The thread terminates with the goroutine, because it is never unlocked.
		runtime.LockOSThread()
		sent, err = f.sendHere(namespace)
	}()
	<-done
	return sent, err
}

func (f flood) sendHere(namespace string) (sent int, err error) {
	file, err := os.Open("/run/netns/" + namespace)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return 0, fmt.Errorf("enter namespace %s: %w", namespace, err)
	}
	family, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_TTL
	if f.to.Is6() {
		family, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptInt(fd, level, option, f.ttl); err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, at(f.from, 0)); err != nil {
		return 0, err
	}
	if err := unix.Connect(fd, at(f.to, 3784)); err != nil {
		return 0, err
	}
	down := protocol.Packet{State: protocol.Down, DetectMultiplier: 3, MyDiscriminator: 5}.Append(nil)
	for began := time.Now(); time.Since(began) < floodFor; {
		for due := int(time.Since(began).Seconds() * floodRate); sent < due; sent++ {
			if _, err := unix.Write(fd, down); err != nil {
				return sent, err
			}
		}
		time.Sleep(time.Millisecond)
	}
	return sent, nil
}

func at(address netip.Addr, port int) unix.Sockaddr {
	if address.Is4() {
		return &unix.SockaddrInet4{Addr: address.As4(), Port: port}
	}
	return &unix.SockaddrInet6{Addr: address.As16(), Port: port}
}
