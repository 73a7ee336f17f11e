// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// renaming changes the server name in the ClientHello, because crypto/tls removes a trailing dot.
type renaming struct {
	net.Conn
	from, to string
}

func (r *renaming) Write(b []byte) (int, error) {
	if _, err := r.Conn.Write(bytes.Replace(b, []byte(r.from), []byte(r.to), 1)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// TestNames checks that no spelling bypasses the validation of a listener. See testdata/names.txt.
func TestNames(t *testing.T) {
	text, err := os.ReadFile("testdata/names.txt")
	if err != nil {
		t.Fatal(err)
	}
	authority, port := newCA(t), freePort(t)
	secure := tlsListener("secure", port, hostname("secure.example.com"), "c")
	secure.GetListener().ClientValidation = &resource.ClientValidation{CertificateAuthorities: []string{"ca"}}
	wide := &resource.Hostname{Name: "example.com", Wildcard: resource.Hostname_LABELS}
	start(t, nil, all(
		one(authority.resource("c", "secure.example.com", "*.example.com"), authority.authority("ca"),
			secure, tlsListener("open", port, wide, "c"),
			routes("rs", "secure", hostname("secure.example.com"), toward("/", "bs")), routes("ro", "open", wide, toward("/", "bo"))),
		backend("bs", serve(t, echo("secure"))), backend("bo", serve(t, echo("open"))),
	)...)
	tried := 0
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		tried++
		want := strings.Join(fields[2:], " ")
		if got := nameTried(t, authority, port, fields[0], fields[1]); got != want {
			t.Errorf("server name %s, host %s: %s; want %s", fields[0], fields[1], got, want)
		}
	}
	if tried < 20 {
		t.Errorf("only %d names were tested", tried)
	}
}

// nameTried returns the status and the backend, or "refused".
func nameTried(t *testing.T, authority *ca, port uint32, serverName, host string) string {
	t.Helper()
	conn, err := net.Dial("tcp", client127(port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	config := &tls.Config{InsecureSkipVerify: true}
	var proves bool
	if serverName, proves = strings.CutPrefix(serverName, "+"); proves {
		config.Certificates = []tls.Certificate{authority.pair("client")}
	}
	if serverName != "-" {
		config.ServerName = serverName
	}
	if name, dotted := strings.CutSuffix(serverName, "."); dotted {
		config.ServerName = name + "x"
		conn = &renaming{conn, name + "x", serverName}
	}
	encrypted := tls.Client(conn, config)
	fmt.Fprintf(encrypted, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
	response, err := http.ReadResponse(bufio.NewReader(encrypted), nil)
	if err != nil {
		if !strings.Contains(err.Error(), "remote error") {
			return err.Error()
		}
		return "refused"
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err.Error()
	}
	return strings.TrimSpace(fmt.Sprint(response.StatusCode, " ", response.Header.Get("X-Backend")))
}
