// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
)

// TestCorpus reads files with a raw request ("request", with escaped \r and \n), the client's statuses
// ("status"), and the backends' requests ("reached").
func TestCorpus(t *testing.T) {
	files, err := filepath.Glob("testdata/abuse/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			parts := map[string]string{}
			for _, part := range archive.Files {
				parts[part.Name] = string(part.Data)
			}
			raw := strings.NewReplacer("\n", "", `\r`, "\r", `\n`, "\n", `\0`, "\x00", `\t`, "\t").Replace(parts["request"])
			if at := strings.Index(raw, "{long}"); at >= 0 {
				raw = raw[:at] + strings.Repeat("x", 100_000) + raw[at+len("{long}"):]
			}
			want := strings.Fields(parts["status"])
			statuses, reached := abuse(t, raw, len(want))
			if strings.Join(statuses, " ") != strings.Join(want, " ") {
				t.Errorf("statuses %v; want %v", statuses, want)
			}
			if want := strings.TrimSpace(parts["reached"]); strings.Join(reached, "\n") != want {
				t.Errorf("reached backends:\n%s\nwant:\n%s", strings.Join(reached, "\n"), want)
			}
		})
	}
}

// abuse returns response statuses and backend requests. After the wanted responses it half-closes and reads on.
func abuse(t *testing.T, raw string, wanted int) (statuses, reached []string) {
	port := freePort(t)
	var mutex sync.Mutex
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mutex.Lock()
		defer mutex.Unlock()
		line := fmt.Sprintf("%s %s %s", r.Method, r.RequestURI, r.Host)
		for _, name := range []string{"Upgrade", "Http2-Settings", "Transfer-Encoding", "Connection", "X-Forwarded-For", "X-Secret",
			"X-Forwarded-Port", "X-Forwarded-Client-Cert", "X-Real-Ip", "X-Scheme", "Forwarded", "X-Original-Url", "X_secret"} {
			// Omit constant values set by the proxy.
			if value := r.Header.Get(name); value != "" && value != map[string]string{"X-Forwarded-Port": "80", "X-Real-Ip": "127.0.0.1", "X-Scheme": "http"}[name] {
				line += fmt.Sprintf(" %s=%s", name, value)
			}
		}
		for name, values := range r.Trailer {
			line += fmt.Sprintf(" trailer %s=%s", name, strings.Join(values, ","))
		}
		if len(body) > 0 {
			line += fmt.Sprintf(" %q", body)
		}
		reached = append(reached, line)
	}), DisableGeneralOptionsHandler: true}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
		backend("a", listener.Addr().String()))...)

	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	go func() { _, _ = io.WriteString(conn, raw) }()
	answers := bufio.NewReader(conn)
	for {
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			break
		}
		statuses = append(statuses, fmt.Sprint(response.StatusCode))
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			break
		}
		if len(statuses) == wanted {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
	}
	mutex.Lock()
	defer mutex.Unlock()
	return statuses, reached
}
