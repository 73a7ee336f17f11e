// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func rawBackend(t *testing.T, script func(conn net.Conn, reader *bufio.Reader)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				reader := bufio.NewReader(conn)
				for {
					if line, err := reader.ReadString('\n'); err != nil || line == "\r\n" {
						break
					}
				}
				script(conn, reader)
			}()
		}
	}()
	return listener.Addr().String()
}

func answering(text string) func(net.Conn, *bufio.Reader) {
	return func(conn net.Conn, _ *bufio.Reader) { _, _ = io.WriteString(conn, text) }
}

var date = regexp.MustCompile("Date: [^\r]*\r\n")

func TestWire(t *testing.T) {
	const fine = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
	const closed = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfine"
	const get = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	const hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"
	const tooLarge = "HTTP/1.1 413 Request Entity Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	const expect = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5000000\r\n\r\n"
	for name, test := range map[string]struct{ request, response, want string }{
		"informational response to HTTP/1.1": {get, hints + fine, hints + closed},
		"informational response to HTTP/1.0": {"GET / HTTP/1.0\r\nHost: a\r\n\r\n", hints + fine, strings.Replace(fine, "1.1", "1.0", 1)},
		"100 of a backend to HTTP/1.0": {
			"POST / HTTP/1.0\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na", "HTTP/1.1 100 Continue\r\n\r\n" + fine,
			strings.Replace(fine, "1.1", "1.0", 1)},
		"upgrade of HTTP/1.0": {
			"GET / HTTP/1.0\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
			"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
			"HTTP/1.0 502 Bad Gateway\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n" +
				"Content-Length: 12\r\n\r\nBad Gateway\n"},
		"413 before the body, connection kept": {expect, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", tooLarge},
		"413 before the body":                  {expect, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", tooLarge},
		"empty line":                           {"\r\n" + get, fine, closed},
		"two line feeds":                       {"\n\n" + get, fine, closed},
		"response with a length, truncated": {
			get, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nhello"},
		"chunked response, truncated": {
			get, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
			"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
				backend("a", rawBackend(t, answering(test.response))))...)
			conn := dialFrom(t, "127.0.0.1", port)
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := io.WriteString(conn, test.request); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if text := date.ReplaceAllString(string(got), ""); err != nil || text != test.want {
				t.Errorf("got %q, %v; want %q", text, err, test.want)
			}
		})
	}
}

// TestFraming checks that the connection is closed after a request that may have Content-Length and Transfer-Encoding
// (RFC 9112, section 6.1), which is rejected behind a trusted proxy.
func TestFraming(t *testing.T) {
	const (
		chunked = "POST / HTTP/1.1\r\nHost: a\r\n%sTransfer-Encoding: chunked\r\n%s\r\n1\r\na\r\n0\r\n\r\n"
		next    = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	)
	one := fmt.Sprintf(chunked, "", "")
	long := "X-A: " + strings.Repeat("a", 20<<10) + "\r\n"
	for name, test := range map[string]struct {
		request string
		// direct and behind are the statuses without and with a trusted proxy.
		direct, behind string
	}{
		"Content-Length":                       {next + next, "200 200", "200 200"},
		"Transfer-Encoding":                    {one + next, "200 200", "200 200"},
		"Transfer-Encoding in a later request": {next + one + one + next, "200 200 200", "200 200 400"},
		"both":                                 {fmt.Sprintf(chunked, "Content-Length: 11\r\n", "") + next, "200", "400"},
		"both, reversed order":                 {fmt.Sprintf(chunked, "", "content-LENGTH: 11\r\n") + next, "200", "400"},
		"both in a later request":              {one + fmt.Sprintf(chunked, "Content-Length: 11\r\n", "") + next, "200 200", "200 400"},
		"both, in a long header":               {fmt.Sprintf(chunked, "Content-Length: 11\r\n", long) + next, "200", "400"},
		"both, in HTTP/1.0 with a keepalive":   {"POST / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\na" + next, "200", "400"},
	} {
		for hops, want := range []string{test.direct, test.behind} {
			port := freePort(t)
			listener := httpListener("l", port, nil)
			listener.GetListener().TrustedHops = uint32(hops)
			start(t, nil, all([]*resource.Resource{listener, routes("r", "l", nil, toward("/", "a"))}, backend("a", serve(t, echo("a"))))...)
			conn := dialFrom(t, "127.0.0.1", port)
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			fmt.Fprint(conn, test.request+strings.Replace(next, "\r\n", "\r\nConnection: close\r\n", 1))
			var got []string
			for reader := bufio.NewReader(conn); ; {
				response, err := http.ReadResponse(reader, nil)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, response.Body)
				if got = append(got, fmt.Sprint(response.StatusCode)); response.Close {
					break
				}
			}
			if strings.Count(want, " ")+1 == strings.Count(test.request, " HTTP/1") && !strings.Contains(want, "400") {
				want += " 200"
			}
			if text := strings.Join(got, " "); text != want {
				t.Errorf("%s, %d trusted proxies: %s; want %s", name, hops, text, want)
			}
		}
	}
}

// TestBrokenResponseHTTP2 checks that the received part of a response precedes the reset of its stream.
func TestBrokenResponseHTTP2(t *testing.T) {
	port := freePort(t)
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
		backend("a", rawBackend(t, answering("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello"))))...)
	response, err := client(t, port, nil, (*http.Protocols).SetUnencryptedHTTP2).Get("http://a/")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if got, err := io.ReadAll(response.Body); string(got) != "hello" || err == nil {
		t.Errorf("%q, %v; want hello and an error", got, err)
	}
}

// TestUpgradeEarlyBytes checks that bytes of the new protocol may be sent before the 101 response.
func TestUpgradeEarlyBytes(t *testing.T) {
	const request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n"
	for name, test := range map[string]struct {
		protocol    string
		sameSegment bool
	}{
		"websocket, with the header": {"websocket", true}, "websocket, behind the header": {"websocket", false},
		"another protocol, with the header": {"spdy/3.1", true}, "another protocol, behind the header": {"spdy/3.1", false},
	} {
		t.Run(name, func(t *testing.T) {
			port, reached, sent, got := freePort(t), make(chan struct{}), make(chan struct{}), make(chan string, 1)
			start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
				backend("a", rawBackend(t, func(conn net.Conn, reader *bufio.Reader) {
					close(reached)
					<-sent
					fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", test.protocol)
					text := make([]byte, len("EARLYLATER"))
					n, _ := io.ReadFull(reader, text)
					got <- string(text[:n])
				})))...)
			conn := dialFrom(t, "127.0.0.1", port)
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			begin := fmt.Sprintf(request, test.protocol)
			if test.sameSegment {
				begin += "EARLY"
			}
			fmt.Fprint(conn, begin)
			<-reached
			if !test.sameSegment {
				fmt.Fprint(conn, "EARLY")
			}
			close(sent)
			if response, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || response.StatusCode != http.StatusSwitchingProtocols {
				t.Fatal(response, err)
			}
			fmt.Fprint(conn, "LATER")
			_ = conn.(*net.TCPConn).CloseWrite()
			if text := <-got; text != "EARLYLATER" {
				t.Errorf("the backend received %q, want EARLYLATER", text)
			}
		})
	}
}
