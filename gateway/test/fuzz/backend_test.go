// SPDX-License-Identifier: Apache-2.0

package fuzz

import (
	"context"
	"encoding/pem"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

var programs = flag.Bool("programs", false, "also use nginx, HAProxy, Node and gunicorn as backends")

// kind starts a backend, which records parsed requests in the world.
type kind func(t *testing.T, w *world, name string) (netip.AddrPort, *resource.Backend)

func kinds(t *testing.T) map[string]kind {
	t.Helper()
	all := map[string]kind{"h1": startPlain, "h1 TLS": startTLS, "h2c": startH2C}
	if *programs {
		maps.Copy(all, map[string]kind{
			"nginx":   program("nginx.conf", "nginx", "-p", "{directory}", "-c", "{file}"),
			"HAProxy": program("haproxy.cfg", "haproxy", "-db", "-f", "{file}"),
			"Node":    program("server.js", "node", "{file}"),
			"gunicorn": program("server.py", "gunicorn", "--worker-class", "gthread", "--threads", "4",
				"--bind", "127.0.0.1:{port}", "--chdir", "{directory}", "server:answer"),
		})
	}
	return all
}

func startPlain(t *testing.T, w *world, name string) (netip.AddrPort, *resource.Backend) {
	t.Helper()
	return startGo(t, w, name, (*httptest.Server).Start), &resource.Backend{}
}

func startTLS(t *testing.T, w *world, name string) (netip.AddrPort, *resource.Backend) {
	t.Helper()
	return startGo(t, w, name, (*httptest.Server).StartTLS), &resource.Backend{Tls: &resource.BackendTLS{Hostname: "example.com"}}
}

func startH2C(t *testing.T, w *world, name string) (netip.AddrPort, *resource.Backend) {
	t.Helper()
	address := startGo(t, w, name, func(server *httptest.Server) {
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
	})
	return address, &resource.Backend{Protocol: resource.Backend_H2C}
}

func startGo(t *testing.T, w *world, name string, start func(*httptest.Server)) netip.AddrPort {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w.record(out, r, parsed{backend: name, method: r.Method, target: r.RequestURI, host: r.Host})
	}))
	server.Config.DisableGeneralOptionsHandler = true
	start(server)
	t.Cleanup(server.Close)
	return netip.MustParseAddrPort(server.Listener.Addr().String())
}

// program is a backend process, which forwards to a recorder with the parsed request line in X-Parsed headers.
func program(file, command string, args ...string) kind {
	return func(t *testing.T, w *world, name string) (netip.AddrPort, *resource.Backend) {
		t.Helper()
		recorder := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			w.record(out, r, parsed{
				backend: name, method: r.Header.Get("X-Parsed-Method"), target: r.Header.Get("X-Parsed-Target"), host: r.Header.Get("X-Parsed-Host"),
			})
		}))
		t.Cleanup(recorder.Close)
		directory, port := t.TempDir(), freePort(t)
		values := strings.NewReplacer("{port}", fmt.Sprint(port), "{recorder}", recorder.Listener.Addr().String(),
			"{directory}", directory, "{file}", filepath.Join(directory, file))
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err == nil {
			err = os.WriteFile(filepath.Join(directory, file), []byte(values.Replace(string(text))), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		var filled []string
		for _, arg := range args {
			filled = append(filled, values.Replace(arg))
		}
		run(t, fmt.Sprintf("127.0.0.1:%d", port), command, filled...)
		return netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", port)), &resource.Backend{}
	}
}

func run(t *testing.T, address, command string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	process := exec.CommandContext(ctx, command, args...)
	process.Stderr = t.Output()
	// SIGTERM also terminates its workers.
	process.Cancel = func() error { return process.Process.Signal(syscall.SIGTERM) }
	process.WaitDelay = 10 * time.Second
	if err := process.Start(); err != nil {
		t.Fatalf("start %s (make test-long installs it): %v", command, err)
	}
	t.Cleanup(func() {
		cancel()
		_ = process.Wait()
	})
	deadline := time.Now().Add(30 * time.Second)
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not accept connections: %v", command, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// testServerCertificate returns the self-signed certificate of net/http's test server.
func testServerCertificate(t *testing.T) []byte {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}
