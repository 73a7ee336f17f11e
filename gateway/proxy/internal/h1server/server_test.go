// SPDX-License-Identifier: Apache-2.0

package h1server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/h1"
)

// world runs the server beside that of net/http, to which it hands over connections.
type world struct {
	*Server
	t        *testing.T
	listener net.Listener
	standard *httptest.Server
	handed   atomic.Int32
	framing  atomic.Int32
	serving  sync.WaitGroup
}

func start(t *testing.T, handler http.HandlerFunc, change func(*Server)) *world {
	t.Helper()
	w := &world{t: t, standard: httptest.NewServer(handler)}
	others := &chanListener{conns: make(chan net.Conn), Listener: w.standard.Listener}
	go func() { _ = w.standard.Config.Serve(others) }()
	w.Server = &Server{
		Handler: handler,
		HandOver: func(conn net.Conn, framing h1.Framing) {
			w.handed.Add(1)
			w.framing.Store(int32(framing))
			others.conns <- conn
		},
		Context:       func(net.Conn) context.Context { return context.Background() },
		SetState:      func(net.Conn, http.ConnState) {},
		HeaderTimeout: 20 * time.Second, IdleTimeout: 20 * time.Second,
		Log: log.New(io.Discard, "", 0),
	}
	if change != nil {
		change(w.Server)
	}
	var err error
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := w.listener.Accept()
			if err != nil {
				return
			}
			w.serving.Go(func() { w.Serve(conn) })
		}
	}()
	t.Cleanup(func() {
		_ = w.listener.Close()
		_ = w.Close()
		w.standard.CloseClientConnections()
		w.standard.Close()
		w.serving.Wait()
	})
	return w
}

type chanListener struct {
	net.Listener
	conns chan net.Conn
}

func (c *chanListener) Accept() (net.Conn, error) { return <-c.conns, nil }

func dial(t *testing.T, address net.Addr) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// exchange sends parts and returns all received bytes.
func exchange(t *testing.T, address net.Addr, parts ...string) string {
	t.Helper()
	conn := dial(t, address)
	for i, part := range parts {
		if i > 0 {
			// The loop reads each part on its own, if possible; any other order is correct, too.
			time.Sleep(time.Millisecond)
		}
		if _, err := io.WriteString(conn, part); err != nil {
			t.Fatal(err)
		}
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("%q: %v", got, err)
	}
	return string(got)
}

// parsed returns the responses of a connection to a method, without the boundaries of chunks.
func parsed(text, method string) string {
	var list []string
	for reader := bufio.NewReader(strings.NewReader(text)); ; {
		response, err := http.ReadResponse(reader, &http.Request{Method: method})
		if err != nil {
			return strings.Join(append(list, err.Error()), "\n")
		}
		if date := response.Header.Get("Date"); len(date) == len(http.TimeFormat) {
			response.Header.Set("Date", "now")
		}
		body, err := io.ReadAll(response.Body)
		if len(body) > 100 {
			body = fmt.Appendf(body[:100], " and %d bytes", len(body)-100)
		}
		list = append(list, fmt.Sprintf("%s %v %q %v %d %v %v %v", response.Status, response.Header, body, response.TransferEncoding,
			response.ContentLength, response.Close, response.Trailer, err))
	}
}

// TestResponses compares responses with those of net/http.
func TestResponses(t *testing.T) {
	set := func(fields ...string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			for i := 0; i < len(fields); i += 2 {
				w.Header()[fields[i]] = append(w.Header()[fields[i]], fields[i+1])
			}
			w.Header()["Content-Type"] = w.Header()["Content-Type"]
		}
	}
	status := func(status int) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.WriteHeader(status) }
	}
	write := func(n int) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { _, _ = w.Write([]byte(strings.Repeat("x", n))) }
	}
	flush := func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }
	abort := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	type script []func(http.ResponseWriter)
	for name, test := range map[string]script{
		"nothing":                     {set()},
		"status":                      {set(), status(404)},
		"unknown status":              {set(), status(799)},
		"short body":                  {set("A", "b", "A", "c"), status(200), write(10), write(3)},
		"body without status":         {set(), write(10)},
		"body of unknown length":      {set(), write(1000), write(1000), write(100), write(10000)},
		"length":                      {set("Content-Length", "10"), status(200), write(10)},
		"length, long":                {set("Content-Length", "100000"), write(10), write(9990), write(90000)},
		"length, too few":             {set("Content-Length", "100"), write(10)},
		"length, too many":            {set("Content-Length", "10"), write(5), write(10)},
		"no length, but a coding":     {set(), write(5), flush, write(3)},
		"flush without body":          {set(), flush},
		"204":                         {set("Content-Length", "0"), status(204)},
		"304":                         {set("Content-Length", "10", "Content-Type", "a/b", "Etag", "c"), status(304), write(10)},
		"close":                       {set("Connection", "close"), write(10)},
		"other connection token":      {set("Connection", "x"), write(10)},
		"date":                        {set("Date", "yesterday"), write(10)},
		"no date":                     {func(w http.ResponseWriter) { w.Header()["Date"] = nil }, set(), write(10)},
		"informational":               {set("Link", "a"), status(103), set("X", "y"), status(200), write(10)},
		"line break in a value":       {set("A", "b\r\nC: d", "E F", "g"), write(10)},
		"trailer":                     {set("Trailer", "A, b", "Trailer", "Content-Length"), status(200), flush, write(10), set("A", "b"), set("B", "c"), set("C", "d")},
		"unannounced trailer":         {set(), status(200), flush, write(10), set(http.TrailerPrefix+"A", "b")},
		"trailer without flush":       {set("Trailer", "A"), status(200), write(10), set("A", "b")},
		"aborted":                     {set(), status(200), write(10), flush, abort},
		"aborted with Content-Length": {set("Content-Length", "20"), status(200), write(10), flush, abort},
	} {
		for _, request := range []string{
			"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
		} {
			w := start(t, func(w http.ResponseWriter, r *http.Request) {
				for _, step := range test {
					if r.URL.Path == "/" {
						step(w)
					}
				}
			}, nil)
			got, want := exchange(t, w.listener.Addr(), request), exchange(t, w.standard.Listener.Addr(), request)
			method, _, _ := strings.Cut(request, " ")
			if got, want := parsed(got, method), parsed(want, method); got != want {
				t.Errorf("%s, %s:\n%s\nnet/http\n%s", name, method, got, want)
			}
			if w.handed.Load() > 0 {
				t.Errorf("%s: handed over, want served by the loop", name)
			}
		}
	}
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header()["Content-Type"] = nil
	fmt.Fprintf(w, "%s %s %s %v", r.Method, r.URL, body, r.TLS != nil)
}

// TestHandOver checks which requests the loop serves, and that all are answered in order.
func TestHandOver(t *testing.T) {
	const get, last = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n", "GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	post := func(n int) string {
		return fmt.Sprintf("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", n, strings.Repeat("b", n))
	}
	for name, test := range map[string]struct {
		parts     []string
		responses int
		isHanded  bool
	}{
		"pipelined":             {[]string{get + get + post(10) + last}, 4, false},
		"in several parts":      {[]string{get + get[:10], get[10:] + post(10)[:50], post(10)[50:], last}, 4, false},
		"single bytes":          {append(strings.Split(get+post(1), ""), last), 3, false},
		"large buffer":          {[]string{post(10000) + get, post(10000) + post(10000) + last}, 5, false},
		"pipelined, too long":   {[]string{get + post(100000) + get + last}, 4, true},
		"long header":           {[]string{get + strings.Replace(get, "Host", "A: "+strings.Repeat("b", 20000)+"\r\nHost", 1) + last}, 3, true},
		"chunked":               {[]string{get + "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\na\r\n0\r\n\r\n" + last}, 3, true},
		"expect":                {[]string{get + "POST /c HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n", "a" + last}, 4, true},
		"line feeds":            {[]string{strings.ReplaceAll(get, "\r\n", "\n") + last}, 2, true},
		"line feeds, in parts":  {[]string{"GET / HTTP/1.1\n", "Host: a\n\n" + last}, 2, true},
		"empty lines":           {[]string{post(1) + "\r\n" + last}, 2, false},
		"HTTP/1.0":              {[]string{"GET / HTTP/1.0\r\n\r\n"}, 1, true},
		"invalid":               {[]string{get + "\x16\x03\x01\x00\x01"}, 2, true},
		"end within the header": {[]string{get + "GET /"}, 2, true},
		"other method":          {[]string{"PROPFIND / HTTP/1.1\r\nHost: a\r\n\r\n" + last}, 2, true},
	} {
		w := start(t, echo, nil)
		exchanged := func(address net.Addr) string {
			if name != "end within the header" && name != "invalid" {
				return exchange(t, address, test.parts...)
			}
			conn := dial(t, address)
			_, _ = io.WriteString(conn, test.parts[0])
			_ = conn.(*net.TCPConn).CloseWrite()
			got, _ := io.ReadAll(conn)
			return string(got)
		}
		got, want := exchanged(w.listener.Addr()), exchanged(w.standard.Listener.Addr())
		if got, want := parsed(got, "GET"), parsed(want, "GET"); got != want || strings.Count(got, "\n") != test.responses {
			t.Errorf("%s:\n%s\nnet/http\n%s", name, got, want)
		}
		if isHanded := w.handed.Load() > 0; isHanded != test.isHanded {
			t.Errorf("%s: handed over %v", name, isHanded)
		}
	}
}

// TestSlowRequest checks that the rest of a request may take longer than the loop waits.
func TestSlowRequest(t *testing.T) {
	w := start(t, echo, nil)
	conn := dial(t, w.listener.Addr())
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nfi")
	await(t, "a request that is read", w.IsReading)
	await(t, "the handover", func() bool { return w.handed.Load() > 0 && !w.IsReading() })
	if framing := h1.Framing(w.framing.Load()); framing != h1.FramingUnique {
		t.Errorf("framing %d", framing)
	}
	_, _ = io.WriteString(conn, "ne")
	if got, err := io.ReadAll(conn); err != nil || !strings.Contains(string(got), "fine") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestTimeouts(t *testing.T) {
	w := start(t, echo, func(s *Server) { s.HeaderTimeout, s.IdleTimeout = 50*time.Millisecond, 50*time.Millisecond })
	for _, sent := range []string{"", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"} {
		conn := dial(t, w.listener.Addr())
		_, _ = io.WriteString(conn, sent)
		if got, err := io.ReadAll(conn); err != nil || strings.Count(string(got), "HTTP/1.1 200") != len(sent)/20 {
			t.Errorf("%q: %q, %v", sent, got, err)
		}
	}
}

// TestDisconnect checks that the end of a connection cancels its request, and that a further request does not.
func TestDisconnect(t *testing.T) {
	began, ended := make(chan struct{}), make(chan error, 1)
	w := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/next" {
			return
		}
		began <- struct{}{}
		select {
		case <-r.Context().Done():
		case <-time.After(map[string]time.Duration{"/": 20 * time.Second, "/short": 3 * watchAfter}[r.URL.Path]):
		}
		ended <- r.Context().Err()
	}, nil)
	conn := dial(t, w.listener.Addr())
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-began
	_ = conn.Close()
	if err := <-ended; err == nil {
		t.Error("the request was not canceled")
	}
	conn = dial(t, w.listener.Addr())
	reader := bufio.NewReader(conn)
	for range 3 {
		_, _ = io.WriteString(conn, "GET /short HTTP/1.1\r\nHost: a\r\n\r\n")
		<-began
		_, _ = io.WriteString(conn, "GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
		if err := <-ended; err != nil {
			t.Errorf("a pipelined request canceled its predecessor: %v", err)
		}
		for range 2 {
			if response, err := http.ReadResponse(reader, nil); err != nil || response.StatusCode != http.StatusOK {
				t.Fatal(response, err)
			}
		}
	}
}

// TestShutdown checks that a request in progress is answered, and that idle connections are closed.
func TestShutdown(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	w := start(t, func(http.ResponseWriter, *http.Request) {
		began <- struct{}{}
		<-goOn
	}, nil)
	idling, working := dial(t, w.listener.Addr()), dial(t, w.listener.Addr())
	const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	_, _ = io.WriteString(idling, get)
	<-began
	goOn <- struct{}{}
	if response, err := http.ReadResponse(bufio.NewReader(idling), nil); err != nil {
		t.Fatal(response, err)
	}
	_, _ = io.WriteString(working, get)
	<-began
	result := make(chan error)
	go func() { result <- w.Shutdown(t.Context()) }()
	if _, err := idling.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("idle connection: %v; want EOF", err)
	}
	goOn <- struct{}{}
	if got, err := io.ReadAll(working); err != nil || !strings.Contains(string(got), "200 OK") {
		t.Errorf("%q, %v", got, err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	// The server closes later connections.
	if got, err := io.ReadAll(dial(t, w.listener.Addr())); len(got) > 0 || err != nil {
		t.Errorf("%q, %v; want EOF", got, err)
	}
}

// TestShutdownEnds checks that Shutdown ends with its context, and Close with a request in progress.
func TestShutdownEnds(t *testing.T) {
	began := make(chan struct{})
	w := start(t, func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
	}, nil)
	conn := dial(t, w.listener.Addr())
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Shutdown(ctx); err == nil {
		t.Error("no error despite a request in progress")
	}
	_ = w.Close()
	w.serving.Wait()
}

// TestTLS checks both protocols over TLS, and that a request handed over retains its TLS state.
func TestTLS(t *testing.T) {
	standard := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	standard.EnableHTTP2 = true
	standard.StartTLS()
	defer standard.Close()
	config := standard.TLS.Clone()
	w := start(t, echo, func(s *Server) { s.TLS = config })
	transport := standard.Client().Transport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", w.listener.Addr().String())
	}
	pipe := func() io.Reader {
		reader, writer := io.Pipe()
		go func() { _, _ = io.WriteString(writer, "fine"); _ = writer.Close() }()
		return reader
	}
	for _, test := range []struct {
		body  io.Reader
		want  string
		isOne bool
	}{{http.NoBody, "POST /a  true", true}, {strings.NewReader("b"), "POST /a b true", true}, {pipe(), "POST /a fine true", false}} {
		before := w.handed.Load()
		one := transport.Clone()
		one.Protocols, one.TLSClientConfig.NextProtos = new(http.Protocols), nil
		one.Protocols.SetHTTP1(true)
		request, _ := http.NewRequest(http.MethodPost, standard.URL+"/a", test.body)
		response, err := one.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		if string(body) != test.want || (w.handed.Load() == before) != test.isOne {
			t.Errorf("%q; want %q, served by the loop: %v", body, test.want, test.isOne)
		}
		one.CloseIdleConnections()
	}
	response, err := (&http.Client{Transport: transport}).Get(standard.URL + "/a")
	if err != nil || response.ProtoMajor != 2 {
		t.Error(response, err)
	}
	if got := exchange(t, w.listener.Addr(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.0 400 ") {
		t.Errorf("plaintext: %q", got)
	}
	if conn, err := tls.Dial("tcp", w.listener.Addr().String(), &tls.Config{MaxVersion: tls.VersionTLS10, InsecureSkipVerify: true}); err == nil {
		_ = conn.Close()
		t.Error("the server accepted TLS 1.0")
	}
}
