// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

const (
	// defaultLinger is how long new connections are accepted after SIGTERM, until nodes and routers have
	// applied the changed endpoints.
	defaultLinger   = 5 * time.Second
	shutdownTimeout = time.Minute
	headerTimeout   = 10 * time.Second
	maxBytes        = 1 << 30
	maxSlow         = time.Minute
)

func serve(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	port := flags.Uint("port", 8080, "port for HTTP and UDP, on all addresses")
	certificate := flags.String("certificate", "", "file with a certificate, to serve HTTPS, too")
	key := flags.String("key", "", "file with its key")
	tlsPort := flags.Uint("tls-port", 8443, "port for HTTPS")
	linger := flags.Duration("linger", defaultLinger, "how long to go on as before when told to end; the pod's grace period must be longer")
	if err := parse(flags, args); err != nil {
		return err
	}
	address := fmt.Sprintf(":%d", *port)
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	id := ownIdentity()
	datagrams, err := listenUDP(address, id)
	if err != nil {
		return err
	}
	if *certificate != "" {
		encrypted := &http.Server{
			Addr: fmt.Sprintf(":%d", *tlsPort), Handler: newSite(id), ReadHeaderTimeout: headerTimeout,
		}
		defer encrypted.Close()
		secure, err := net.Listen("tcp", encrypted.Addr)
		if err != nil {
			return fmt.Errorf("serve HTTPS: %w", err)
		}
		pair, err := tls.LoadX509KeyPair(*certificate, *key)
		if err != nil {
			return fmt.Errorf("serve HTTPS: %w", err)
		}
		encrypted.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}}
		go func() { _ = encrypted.ServeTLS(secure, "", "") }()
	}
	fmt.Fprintf(stdout, "serving HTTP and UDP on port %d as pod %s on node %s\n", *port, id.Pod, id.Node)
	return serveUntil(ctx, listener, datagrams, newSite(id), *linger)
}

// serveUntil serves until ctx ends plus linger, then accepts no connections, ends streams and finishes
// requests in flight. It stays ready meanwhile: a terminating endpoint gets no new connections, and an
// unready one would not serve established ones (KEP-1672).
func serveUntil(ctx context.Context, listener net.Listener, datagrams *udpServer, served *site, linger time.Duration) error {
	defer datagrams.Close()
	server := &http.Server{Handler: served, ReadHeaderTimeout: headerTimeout, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(listener) }()
	go func() { ended <- datagrams.serve() }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-time.After(linger):
	}
	shutdown, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	served.streams.close()
	if err := server.Shutdown(shutdown); err != nil {
		return fmt.Errorf("finish requests: %w", err)
	}
	return nil
}

type site struct {
	http.Handler
	streams *streams
}

// newSite serves:
//
//	GET /                  who answers, and the connection's addresses, as JSON
//	GET /bytes?n=&seed=    n pseudo-random bytes that depend on seed only
//	POST /sum              length and SHA-256 of the body, as JSON
//	GET /slow?for=1s       as /, after a time
//	POST /repeat           who answers, and the body, as JSON
//	GET /stream            a WebSocket: each message is answered so
//
// and over HTTP/2 the same as a stream of gRPC.
func newSite(id identity) *site {
	mux, kept := http.NewServeMux(), newStreams(id)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { writeAnswer(w, r, id) })
	mux.HandleFunc("POST /repeat", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxDatagram))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		writeJSON(w, message{id, string(text)})
	})
	mux.HandleFunc("GET /stream", kept.serveWebSocket)
	mux.Handle("POST /"+grpcService+"/", kept.grpc)
	mux.HandleFunc("GET /bytes", writeBytes)
	mux.HandleFunc("POST /sum", writeSum)
	mux.HandleFunc("GET /slow", func(w http.ResponseWriter, r *http.Request) {
		pause, err := durationParameter(r, "for", time.Second)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-r.Context().Done():
		case <-time.After(min(pause, maxSlow)):
			writeAnswer(w, r, id)
		}
	})
	return &site{mux, kept}
}

func writeAnswer(w http.ResponseWriter, r *http.Request, id identity) {
	local := ""
	if address, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		local = address.String()
	}
	writeJSON(w, answer{identity: id, Client: r.RemoteAddr, Local: local, Forwarded: r.Header.Get("X-Forwarded-For")})
}

func writeBytes(w http.ResponseWriter, r *http.Request) {
	count, err := numberParameter(r, "n", 1<<20)
	if err == nil && (count < 0 || count > maxBytes) {
		err = fmt.Errorf("n is %d: want 0 to %d", count, maxBytes)
	}
	seed, seedErr := numberParameter(r, "seed", 1)
	if err := errors.Join(err, seedErr); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(count, 10))
	// Clients may disconnect.
	_, _ = io.Copy(w, newPattern(seed, count))
}

type sum struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

func writeSum(w http.ResponseWriter, r *http.Request) {
	result, err := sumOf(http.MaxBytesReader(w, r.Body, maxBytes))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	writeJSON(w, result)
}

func writeJSON(w http.ResponseWriter, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n'))
}

func numberParameter(r *http.Request, name string, fallback int64) (int64, error) {
	text := r.FormValue(name)
	if text == "" {
		return fallback, nil
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parameter %s: %w", name, err)
	}
	return value, nil
}

func durationParameter(r *http.Request, name string, fallback time.Duration) (time.Duration, error) {
	text := r.FormValue(name)
	if text == "" {
		return fallback, nil
	}
	value, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("parameter %s: %w", name, err)
	}
	return value, nil
}
