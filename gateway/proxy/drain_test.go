// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func status(t *testing.T, handler http.Handler, path string) (int, string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
	return recorder.Code, recorder.Body.String()
}

func TestReady(t *testing.T) {
	p := New(Defaults())
	if code, _ := status(t, p.Admin(), "/readyz"); code != 503 {
		t.Errorf("without a configuration: %d; want 503", code)
	}
	if code, _ := status(t, p.Admin(), "/healthz"); code != 200 {
		t.Errorf("health: %d; want 200", code)
	}
	p.Apply(Update{Version: "1", Whole: true})
	if code, _ := status(t, p.Admin(), "/readyz"); code != 200 {
		t.Errorf("with an empty configuration: %d; want 200", code)
	}
}

// TestShutdownLosesNothing checks that no request on kept connections fails until the port is closed.
func TestShutdownLosesNothing(t *testing.T) {
	port, authority := freePort(t), newCA(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	f := start(t, func(s *Settings) { s.DrainWait, s.DrainGrace = 50*time.Millisecond, 3*time.Second }, all(
		one(authority.resource("c", "a.example.com"), tlsListener("l", port, hostname("a.example.com"), "c"),
			routes("r", "l", nil, toward("/", "a"))),
		backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/long" {
				begun <- struct{}{}
				<-goOn
			}
			echo("a")(w, r)
		})),
	)...)
	var wait sync.WaitGroup
	var draining, closing atomic.Bool
	var served, requests atomic.Int32
	for i := range 4 {
		protocol := (*http.Protocols).SetHTTP1
		if i%2 == 1 {
			protocol = (*http.Protocols).SetHTTP2
		}
		c := client(t, port, &tls.Config{RootCAs: authority.pool()}, protocol)
		wait.Go(func() {
			for {
				response, err := c.Get("https://a.example.com/")
				if err != nil {
					// A refused connection is not a lost request.
					if !closing.Load() || !strings.Contains(err.Error(), "refused") {
						t.Errorf("the request in progress failed: %v", err)
					}
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				served.Add(1)
				if response.Close {
					requests.Add(1)
				}
				if draining.Load() && requests.Load() > 0 && closing.Load() {
					return
				}
			}
		})
	}
	long := make(chan error, 1)
	slow := client(t, port, &tls.Config{RootCAs: authority.pool()})
	go func() {
		response, err := slow.Get("https://a.example.com/long")
		if err == nil {
			_ = response.Body.Close()
		}
		long <- err
	}()
	<-begun
	done := make(chan error, 1)
	go func() { done <- f.Shutdown(context.Background()) }()
	for f.Ready() {
		pause(t.Context(), time.Millisecond)
	}
	draining.Store(true)
	for requests.Load() == 0 && !t.Failed() {
		pause(t.Context(), time.Millisecond)
	}
	closing.Store(true)
	wait.Wait()
	close(goOn)
	if err := <-long; err != nil {
		t.Errorf("request during the shutdown failed: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("shutdown: %v", err)
	}
	f.change(httpListener("late", freePort(t), nil))
	for _, number := range []uint32{port, f.table.Load().listeners["late"].value.resource.GetTargetPort()} {
		if conn, err := net.Dial("tcp", client127(number)); err == nil {
			_ = conn.Close()
			t.Errorf("port %d is still open after the shutdown", number)
		}
	}
	if served.Load() == 0 {
		t.Error("no request was served")
	}
}

// TestPortsChange checks that a removed port is closed after its open request, and a new one opened.
func TestPortsChange(t *testing.T) {
	first, second := freePort(t), freePort(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	b := backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-goOn
		echo("a")(w, r)
	}))
	f := start(t, nil, all(one(httpListener("l", first, nil), routes("r", "l", nil, toward("/", "a"))), b)...)
	answers := make(chan error, 2)
	request := func(port uint32) {
		c := client(t, port, nil)
		go func() {
			response, err := c.Get("http://a/")
			if err == nil {
				if _, err = io.Copy(io.Discard, response.Body); response.StatusCode != 200 {
					err = fmt.Errorf("status %d", response.StatusCode)
				}
				_ = response.Body.Close()
			}
			answers <- err
		}()
		<-begun
	}
	request(first)
	f.change(httpListener("l", second, nil))
	request(second)
	if conn, err := net.Dial("tcp", client127(first)); err == nil {
		_ = conn.Close()
		t.Error("the removed port is still open")
	}
	close(goOn)
	for range 2 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

type silent struct{ ended chan struct{} }

func (s silent) Read([]byte) (int, error) {
	<-s.ended
	return 0, os.ErrDeadlineExceeded
}

func (s silent) Close() error { return nil }

// TestSlowBodyIsClosedFirst checks that a body timeout is attributed to the client, although net/http cancels
// the context before the read returns.
func TestSlowBodyIsClosedFirst(t *testing.T) {
	body := &timeoutBody{
		ReadCloser: silent{make(chan struct{})}, timeout: time.Minute,
		controller: http.NewResponseController(httptest.NewRecorder()), armed: time.Now(),
	}
	read := make(chan error)
	go func() {
		_, err := body.Read(make([]byte, 1))
		read <- err
	}()
	for reading := false; !reading; time.Sleep(time.Millisecond) {
		body.mutex.Lock()
		reading = body.reading
		body.mutex.Unlock()
	}
	if err := body.readError(); err != nil {
		t.Errorf("within the time limit: %v", err)
	}
	body.mutex.Lock()
	body.armed = time.Now().Add(-time.Minute)
	body.mutex.Unlock()
	_ = body.Close()
	if err := body.readError(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the time limit, before the read returns: %v", err)
	}
	close(body.ReadCloser.(silent).ended)
	if err := <-read; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the read returned %v", err)
	}
	if err := body.readError(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the read: %v", err)
	}
}

func TestSlowClients(t *testing.T) {
	port := freePort(t)
	start(t, func(s *Settings) {
		s.HeaderTimeout, s.BodyTimeout, s.WriteTimeout = 500*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
		s.MaxBodyBytes = 1000
	}, all(one(httpListener("l", port, nil), routes("r", "l", hostname("a"), toward("/", "a"))), backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/endless" {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}
		if r.URL.Path == "/late" {
			_, _ = io.Copy(io.Discard, r.Body)
			pause(r.Context(), time.Second)
		}
		echo("a")(w, r)
	})))...)
	for name, tc := range map[string]struct{ sent, want string }{
		"header":  {"GET / HTTP/1.1\r\nHost: a\r\nX-A: ", ""},
		"body":    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc", "HTTP/1.1 408 Request Timeout"},
		"refused": {"POST / HTTP/1.1\r\nHost: other\r\nContent-Length: 100\r\n\r\nabc", "HTTP/1.1 404 Not Found"},
		"late":    {"POST /late HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 200 OK"},
		"large":   {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" + strings.Repeat("x", 2048) + "\r\n0\r\n\r\n", "HTTP/1.1 413 Request Entity Too Large"},
	} {
		conn, err := net.Dial("tcp", client127(port))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprint(conn, tc.sent)
		line, err := bufio.NewReader(conn).ReadString('\n')
		if timedOut(err) || strings.TrimSpace(line) != tc.want {
			t.Errorf("%s: %q, %v; want %q and EOF", name, line, err, tc.want)
		}
		_ = conn.Close()
	}
	// If the client does not read, the backend request ends when the client times out.
	for _, protocol := range []func(*http.Protocols, bool){(*http.Protocols).SetHTTP1, (*http.Protocols).SetUnencryptedHTTP2} {
		response, err := client(t, port, nil, protocol).Get("http://a/endless")
		if err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(10 * time.Second)
		pause(t.Context(), time.Second)
		for {
			if _, err := response.Body.Read(make([]byte, 1<<16)); err != nil {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: a client that does not read for one second still receives bytes", response.Proto)
				break
			}
		}
		_ = response.Body.Close()
	}
}
