// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package e2e

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/millrace-lb/millrace/test/harness"
)

// maxGrowth is the accepted memory growth by unauthenticated clients in KiB.
const maxGrowth = 32 << 10

// process is a program of Millrace in a container of the lab.
type process struct {
	program string
	pid     int
}

// processes finds programs by their executables, "/PROGRAM" in their containers.
func processes(t *testing.T) []process {
	t.Helper()
	var found []process
	executables, err := filepath.Glob("/proc/[0-9]*/exe")
	must(t, err)
	for _, path := range executables {
		target, err := os.Readlink(path)
		if err != nil {
			continue
		}
		program, is := strings.CutPrefix(target, "/")
		if pid, err := strconv.Atoi(strings.Split(path, "/")[2]); err == nil && is && slices.Contains(programs, program) {
			found = append(found, process{program, pid})
		}
	}
	return found
}

var programs = []string{"operator", "lbagent", "lbbfd", "gateway", "lbproxy", "liveapi"}

func (p process) listening(t *testing.T) []int {
	t.Helper()
	sockets := map[string]bool{}
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.pid))
	must(t, err)
	for _, path := range descriptors {
		if target, err := os.Readlink(path); err == nil {
			sockets[strings.Trim(target, "socket:[]")] = true
		}
	}
	const listen = "0A"
	var ports []int
	for _, table := range []string{"tcp", "tcp6"} {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.pid, table))
		must(t, err)
		for line := range strings.SplitSeq(string(content), "\n") {
			fields := strings.Fields(line)
			if len(fields) < 10 || fields[3] != listen || !sockets[fields[9]] {
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			must(t, err)
			ports = append(ports, int(port))
		}
	}
	return ports
}

// memory returns a field of /proc/PID/status in KiB: VmRSS, or VmHWM since resetMemory.
func (p process) memory(t *testing.T, field string) int {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	must(t, err)
	match := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(content)
	if match == nil {
		t.Fatalf("%s has no field %s", p.program, field)
	}
	kilobytes, err := strconv.Atoi(string(match[1]))
	must(t, err)
	return kilobytes
}

func (p process) resetMemory(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.pid), []byte("5"), 0))
}

type dialer struct{ namespace netns.NsHandle }

// dial connects from a loopback address; each counts as a separate source.
func (d dialer) dial(source, port int) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result, 1)
	go func() {
		// The thread is not unlocked, so that it ends with the goroutine.
		runtime.LockOSThread()
		if err := netns.Set(d.namespace); err != nil {
			results <- result{err: err}
			return
		}
		local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(source))}
		conn, err := net.DialTCP("tcp4", local, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		results <- result{conn, err}
	}()
	got := <-results
	if got.err != nil {
		return nil, got.err
	}
	return got.conn, got.conn.SetDeadline(time.Now().Add(10 * time.Second))
}

// attacks use a server's memory before authentication. They end when the server closes the connection or at
// their deadline.
var attacks = map[string]func(net.Conn) error{
	"header without end": func(conn net.Conn) error { return endlessHeader(conn) },
	"header without end over TLS": func(conn net.Conn) error {
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		return errors.Join(secure.Handshake(), endlessHeader(secure))
	},
	"many streams of HTTP/2": func(conn net.Conn) error {
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		return errors.Join(secure.Handshake(), manyStreams(secure))
	},
	"partial TLS handshake": func(conn net.Conn) error {
		_, err := conn.Write(append([]byte{22, 3, 1, 0x3f, 0xff, 1, 0, 0xff, 0xff}, make([]byte, 16000)...))
		return errors.Join(err, drain(conn))
	},
}

func endlessHeader(conn net.Conn) error {
	_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: test\r\n")
	line := append([]byte("X: "), bytes.Repeat([]byte("x"), 4<<10)...)
	line = append(line, "\r\n"...)
	for range 1024 {
		if err != nil {
			return err
		}
		_, err = conn.Write(line)
	}
	return errors.Join(err, drain(conn))
}

// manyStreams opens 256 unfinished requests whose headers repeat an indexed field of 4 KiB.
func manyStreams(conn net.Conn) error {
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	go func() { _ = drain(conn) }()
	framer := http2.NewFramer(conn, nil)
	if err := framer.WriteSettings(); err != nil {
		return err
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for stream := range uint32(256) {
		block.Reset()
		for _, field := range []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/"}, {Name: ":authority", Value: "test"}} {
			_ = encoder.WriteField(field)
		}
		for range 200 {
			_ = encoder.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 3<<10)})
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*stream + 1, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
			return err
		}
	}
	return nil
}

func drain(conn net.Conn) error {
	_, err := io.Copy(io.Discard, conn)
	return err
}

// TestListeners attacks every listening socket with 300 connections from four sources. No process may grow
// by more than maxGrowth.
func TestListeners(t *testing.T) {
	must(t, cluster.InstallGateway(t.Context()))
	must(t, cluster.InstallLive(t.Context()))
	must(t, cluster.Apply(t.Context(), newCertificate(t).manifest()))
	must(t, cluster.Apply(t.Context(), harness.Ingress))
	cleanup(t, "delete", "ingress,secret", "site", "--ignore-not-found")
	ingressAddresses(t, "site")
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "deployment/"+proxies))
	tested := map[string]bool{}
	for _, each := range processes(t) {
		if tested[each.program] {
			continue
		}
		tested[each.program] = true
		t.Run(each.program, func(t *testing.T) { each.flood(t) })
	}
	for _, program := range programs {
		if !tested[program] {
			t.Errorf("no process of %s was found, only %v", program, slices.Sorted(maps.Keys(tested)))
		}
	}
}

func (p process) flood(t *testing.T) {
	namespace, err := netns.GetFromPid(p.pid)
	must(t, err)
	defer namespace.Close()
	for _, port := range p.listening(t) {
		for name, attack := range attacks {
			before := p.memory(t, "VmRSS")
			p.resetMemory(t)
			var group sync.WaitGroup
			for i := range 300 {
				group.Go(func() {
					// Servers may reject or close connections.
					if conn, err := (dialer{namespace}).dial(2+i%4, port); err == nil {
						defer conn.Close()
						_ = attack(conn)
					}
				})
			}
			group.Wait()
			growth := p.memory(t, "VmHWM") - before
			t.Logf("port %d, %s: memory increased by %d KiB", port, name, growth)
			if growth > maxGrowth {
				t.Errorf("port %d, %s: memory increased by %d KiB, want at most %d", port, name, growth, maxGrowth)
			}
		}
	}
}
