// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestRefusedBeforeItsBody checks requests with Expect (RFC 9110, section 10.1.1) or a long body.
func TestRefusedBeforeItsBody(t *testing.T) {
	port := freePort(t)
	start(t, nil, httpListener("l", port, nil))
	for _, header := range []string{"Expect: 100-continue\r\nContent-Length: 100", "Content-Length: 1000000000"} {
		conn, err := net.Dial("tcp", client127(port))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", header)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%q: %v", header, err)
		} else if response.StatusCode != http.StatusNotFound {
			t.Errorf("%q: %d; want 404", header, response.StatusCode)
		}
		_ = conn.Close()
	}
}
