// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const podSpace = "pod"

// retainConnections changes the Service to policy Local and replaces its endpoints by others of the same
// node, as a changed selector does. Connections of an old endpoint continue while its pod has the address;
// new ones use the new endpoint.
func (w *world) retainConnections() {
	w.t.Helper()
	previous, current := podOf(10, 0, 1).String(), podOf(10, 0, 3).String()
	w.makeLocal()
	w.startPod(previous, current)
	w.setEndpoints(previous)
	var old *echoClient
	w.Await(20*time.Second, "a connection to the old endpoint", func() bool {
		old = w.dialVIP()
		return old != nil && old.ask() == nil && old.endpoint == previous
	})
	w.setEndpoints(current)
	w.Await(20*time.Second, "a connection to the new endpoint", func() bool {
		connection := w.dialVIP()
		return connection != nil && connection.ask() == nil && connection.endpoint == current
	})
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		if err := old.ask(); err != nil || old.endpoint != previous {
			w.t.Fatalf("connection to removed endpoint %s: reply from %s, error %v", previous, old.endpoint, err)
		}
		if connection := w.dialVIP(); connection == nil || connection.ask() != nil || connection.endpoint != current {
			w.t.Fatalf("new connection = %+v, want endpoint %s", connection, current)
		}
	}
	// The other endpoint is on the other node, which alone can verify it.
	w.awaitRetained(2)
	run(w.t, "ip -n "+podSpace+" address delete "+previous+"/32 dev eth0")
	w.awaitRetained(1)
}

func (w *world) awaitRetained(count int) {
	w.t.Helper()
	w.Await(30*time.Second, fmt.Sprintf("%d retained endpoints", count), func() bool {
		_, metrics := w.scrape(scraper)
		return strings.Contains(metrics, fmt.Sprintf("\nmillrace_retained_endpoints %d\n", count))
	})
}

// startPod starts a network namespace with addresses. For each received byte, its server at port 8080 sends
// the local address of the connection.
func (w *world) startPod(addresses ...string) {
	w.t.Helper()
	w.t.Cleanup(func() { run(w.t, "ip netns delete "+podSpace) })
	for _, command := range []string{
		"ip netns add " + podSpace,
		"ip link add pod0 type veth peer name eth0 netns " + podSpace,
		"ip link set pod0 up",
		"ip -n " + podSpace + " link set eth0 up",
		"ip -n " + podSpace + " route add 198.51.100.0/24 dev eth0",
		"ip route add default via 198.51.100.1",
		"sysctl -qw net.ipv4.ip_forward=1",
	} {
		run(w.t, command)
	}
	for _, address := range addresses {
		run(w.t, "ip -n "+podSpace+" address add "+address+"/32 dev eth0")
		run(w.t, "ip route add "+address+" dev pod0")
	}
	run(w.t, "ip -n "+podSpace+" route add default dev eth0")
	run(w.t, "sysctl -qw net.ipv4.conf.pod0.proxy_arp=1")
	var listener net.Listener
	w.in(podSpace, func() (err error) {
		listener, err = net.Listen("tcp4", ":8080")
		return err
	})
	w.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go echo(connection)
		}
	}()
}

func echo(connection net.Conn) {
	defer connection.Close()
	host, _, _ := net.SplitHostPort(connection.LocalAddr().String())
	one := make([]byte, 1)
	for {
		if _, err := io.ReadFull(connection, one); err != nil {
			return
		}
		if _, err := fmt.Fprintln(connection, host); err != nil {
			return
		}
	}
}

func (w *world) setEndpoints(address string) {
	w.t.Helper()
	slice := &discoveryv1.EndpointSlice{}
	if err := w.client.Get(w.t.Context(), served, slice); err != nil {
		w.t.Fatal(err)
	}
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{address}, NodeName: pointer(thisNode)}}
	if err := w.client.Update(w.t.Context(), slice); err != nil {
		w.t.Fatal(err)
	}
}

type echoClient struct {
	net.Conn
	reader   *bufio.Reader
	endpoint string
}

func (w *world) dialVIP() *echoClient {
	w.t.Helper()
	var connection net.Conn
	w.in(routerSpace, func() (err error) {
		connection, _ = net.DialTimeout("tcp4", vip+":80", 2*time.Second)
		return nil
	})
	if connection == nil {
		return nil
	}
	w.t.Cleanup(func() { _ = connection.Close() })
	return &echoClient{Conn: connection, reader: bufio.NewReader(connection)}
}

func (c *echoClient) ask() error {
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte{'?'}); err != nil {
		return err
	}
	line, err := c.reader.ReadString('\n')
	c.endpoint = line[:max(len(line)-1, 0)]
	return err
}

// in calls f on a thread in a network namespace. Sockets stay in that namespace.
func (w *world) in(namespace string, f func() error) {
	w.t.Helper()
	done := make(chan error)
	go func() {
		// The thread terminates with the goroutine, because it is never unlocked.
		runtime.LockOSThread()
		done <- func() error {
			file, err := os.Open("/run/netns/" + namespace)
			if err != nil {
				return err
			}
			defer file.Close()
			if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			return f()
		}()
	}()
	if err := <-done; err != nil {
		w.t.Fatal(err)
	}
}
