// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// patience is for an emulated machine under load. maxDatagram is the maximum size of a pod's reply.
const maxDatagram = 8192

const patience = 30 * time.Second

// serve runs a pod's servers. A TCP client sends the number of bytes to receive, then the number to send; it
// gets "pod client\n" and the bytes, and then an echo. A UDP datagram is returned after "pod client\n".
func serve(t testing.TB, pod pod) {
	t.Helper()
	for _, address := range []netip.Addr{pod.ipv4, pod.ipv6} {
		inNamespace(t, pod.name, func() error {
			at := netip.AddrPortFrom(address, podPort).String()
			listener, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			t.Cleanup(func() { listener.Close() })
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go serveTCP(pod, conn)
				}
			}()
			socket, err := net.ListenPacket("udp", at)
			if err != nil {
				return err
			}
			t.Cleanup(func() { socket.Close() })
			go serveUDP(pod, socket)
			return nil
		})
	}
}

func greeting(pod pod, client net.Addr) []byte {
	return fmt.Appendf(nil, "%s %s\n", pod.name, client)
}

func serveTCP(pod pod, conn net.Conn) {
	defer conn.Close()
	var sizes [2]uint32
	if _, err := conn.Write(greeting(pod, conn.RemoteAddr())); err != nil {
		return
	}
	for binary.Read(conn, binary.BigEndian, &sizes) == nil {
		if _, err := io.CopyN(conn, zeroes{}, int64(sizes[0])); err != nil {
			return
		}
		body := make([]byte, sizes[1])
		if _, err := io.ReadFull(conn, body); err != nil {
			return
		}
		if _, err := conn.Write(body); err != nil {
			return
		}
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func serveUDP(pod pod, socket net.PacketConn) {
	buffer := make([]byte, maxDatagram)
	for {
		n, client, err := socket.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = socket.WriteTo(append(greeting(pod, client), buffer[:n]...), client)
	}
}

// clientPort assigns each flow its own port, because one port towards two frontends with the same pod is a
// conflict.
var clientPort atomic.Uint32

// nextPort stays below the ephemeral ports in repeated tests, each of which has its own network.
func nextPort() int { return 20000 + int(clientPort.Add(1)%12000) }

func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout after %s: %s", patience, what)
		}
	}
}

type session struct {
	net.Conn
	pod string
}

// connect opens a TCP connection and checks that the pod sees the client's address.
func connect(t testing.TB, to netip.AddrPort) *session {
	t.Helper()
	return connectFrom(t, nextPort(), to)
}

func connectFrom(t testing.TB, port int, to netip.AddrPort) *session {
	t.Helper()
	return connectBy(t, &net.Dialer{LocalAddr: &net.TCPAddr{Port: port}}, to)
}

func connectBy(t testing.TB, dialer *net.Dialer, to netip.AddrPort) *session {
	t.Helper()
	s := &session{}
	inNamespace(t, "client", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var err error
		s.Conn, err = dialer.DialContext(ctx, "tcp", to.String())
		return err
	})
	t.Cleanup(func() { s.Close() })
	var client, line string
	err := s.SetDeadline(time.Now().Add(patience))
	if err == nil {
		line, err = readLine(s)
	}
	if err == nil {
		_, err = fmt.Sscanf(line, "%s %s", &s.pod, &client)
	}
	if err != nil {
		t.Fatalf("read the greeting of %s: %q, %v", to, line, err)
	}
	if client != s.LocalAddr().String() {
		t.Fatalf("client address at pod %s = %s, want %s", s.pod, client, s.LocalAddr())
	}
	return s
}

func readLine(r io.Reader) (string, error) {
	var line []byte
	var b [1]byte
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return string(line), err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[0])
	}
}

func (s *session) exchange(download, upload int) error {
	if err := s.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := binary.Write(s, binary.BigEndian, [2]uint32{uint32(download), uint32(upload)}); err != nil {
		return err
	}
	if n, err := io.CopyN(io.Discard, s, int64(download)); err != nil {
		return fmt.Errorf("download: after %d bytes: %w", n, err)
	}
	sent, got := make([]byte, upload), make([]byte, upload)
	rand.Read(sent)
	failed := make(chan error, 1)
	go func() {
		_, err := s.Write(sent)
		failed <- err
	}()
	_, err := io.ReadFull(s, got)
	if err := errors.Join(err, <-failed); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	if !bytes.Equal(sent, got) {
		return errors.New("upload: the echoed data differs")
	}
	return nil
}

func askUDP(t testing.TB, to netip.AddrPort, size int) string {
	t.Helper()
	conn := dialUDP(t, to)
	defer conn.Close()
	pod, err := askAgain(conn, size)
	if err != nil {
		t.Fatalf("query %s by UDP: %v", to, err)
	}
	return pod
}

func dialUDP(t testing.TB, to netip.AddrPort) (conn net.Conn) {
	t.Helper()
	inNamespace(t, "client", func() (err error) {
		conn, err = net.DialUDP("udp", &net.UDPAddr{Port: nextPort()}, net.UDPAddrFromAddrPort(to))
		return err
	})
	return conn
}

func askAgain(conn net.Conn, size int) (string, error) {
	message, answer := make([]byte, size), make([]byte, maxDatagram)
	rand.Read(message)
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := conn.Write(message); err != nil {
		return "", err
	}
	n, err := conn.Read(answer)
	if err != nil {
		return "", err
	}
	line, body, _ := bytes.Cut(answer[:n], []byte("\n"))
	var pod, client string
	if _, err := fmt.Sscanf(string(line), "%s %s", &pod, &client); err != nil {
		return "", fmt.Errorf("reply %q: %w", line, err)
	}
	if client != conn.LocalAddr().String() || !bytes.Equal(body, message) {
		return "", fmt.Errorf("client address at pod %s = %s, want %s; echo equal: %v", pod, client, conn.LocalAddr(), bytes.Equal(body, message))
	}
	return pod, nil
}

// checkSilence checks that there is no reply, not even a reset.
func checkSilence(t testing.TB, to netip.AddrPort, wait time.Duration) {
	t.Helper()
	inNamespace(t, "client", func() error {
		conn, err := net.DialTimeout("tcp", to.String(), wait)
		if err == nil {
			conn.Close()
			return fmt.Errorf("connected to %s", to)
		}
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			return nil
		}
		return err
	})
}
