// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
)

func switching(t *testing.T) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	})
}

func upgrade(t *testing.T, address string, port uint32) (int, net.Conn, *bufio.Reader) {
	t.Helper()
	conn := dialFrom(t, address, port)
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, conn, reader
}

// TestUpgradesCount checks that WebSockets beyond the memory limit receive 503.
func TestUpgradesCount(t *testing.T) {
	port := freePort(t)
	const each, all4 = admission.ConnectionBytes + requestBytes + tunnelBytes, 40
	start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = all4*each, all4*each/4 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", switching(t)))...)
	open := 0
	for client := range 8 {
		for own := 0; ; own++ {
			status, _, _ := upgrade(t, fmt.Sprintf("127.0.0.%d", 2+client), port)
			if status == http.StatusServiceUnavailable {
				break
			}
			if open++; status != http.StatusSwitchingProtocols || own > all4/4 {
				t.Fatalf("client %d: status %d for upgrade %d; want 503 above its share", client, status, own)
			}
		}
	}
	if open > all4 || open < all4/2 {
		t.Errorf("%d upgrades are open; want at most %d", open, all4)
	}
}

// TestUpgradesStay checks that a WebSocket survives the removal of its route and endpoint.
func TestUpgradesStay(t *testing.T) {
	port, address := freePort(t), switching(t)
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", address))...)
	status, conn, reader := upgrade(t, "127.0.0.1", port)
	passes := func(when string) {
		t.Helper()
		fmt.Fprint(conn, when+"\n")
		if got, err := reader.ReadString('\n'); err != nil || got != when+"\n" {
			t.Fatalf("%s: %q, %v", when, got, err)
		}
	}
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("status %d", status)
	}
	passes("at first")
	other := serve(t, echo("b"))
	f.apply(all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "b"))), backend("a", address), backend("b", other))...)
	passes("after a change of the route")
	f.apply(all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", other))...)
	passes("after the endpoint has left")
	f.apply(one(httpListener("l", port, nil))...)
	passes("after the removal of the route")
	if half, ok := conn.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
	if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
		t.Errorf("after the client's EOF: %q, %v; want EOF of the backend", rest, err)
	}
}
