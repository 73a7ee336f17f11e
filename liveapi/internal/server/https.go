// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/millrace-lb/millrace/api/serving"
)

const (
	// maxHeaderBytes leaves room for a user's groups.
	maxHeaderBytes = 64 << 10
	// maxStreams limits the requests of one connection. The cluster's API server opens further connections.
	maxStreams = 250
	// bufferBytes is the minimum of net/http for the unread bodies of a connection.
	bufferBytes = 64 << 10
	// shutdownTimeout is the time for responses after the API server's library has drained its requests.
	shutdownTimeout = 2 * time.Second
)

// bounded serves HTTPS instead of the API server's library, whose limits are not configurable: it reads headers
// up to 1 MiB for 32 seconds, and 256 KiB of the body of each stream before authentication.
type bounded struct {
	listener net.Listener
	server   *http.Server
	watcher  *certwatcher.CertWatcher
}

func listen(options Options) (*bounded, error) {
	watcher, err := certwatcher.New(filepath.Join(options.CertDir, "tls.crt"), filepath.Join(options.CertDir, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("read the certificate in %s: %w", options.CertDir, err)
	}
	listener, err := serving.Listen(options.Address, connections)
	if err != nil {
		return nil, fmt.Errorf("--bind-address: %w", err)
	}
	server := serving.NewHTTP(nil)
	server.MaxHeaderBytes = maxHeaderBytes
	// Watches and streams have no time limit; the library limits other requests.
	server.ReadTimeout, server.WriteTimeout = 0, 0
	server.Protocols.SetHTTP2(true)
	server.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: bufferBytes, MaxReceiveBufferPerStream: bufferBytes,
	}
	// Anybody can fail handshakes, so they are not logged.
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: watcher.GetCertificate,
		// The library verifies the certificate of the cluster's API server, per request.
		ClientAuth: tls.RequestClientCert,
	}
	return &bounded{listener: listener, server: server, watcher: watcher}, nil
}

// run serves while library runs.
func (b *bounded) run(ctx context.Context, library func(context.Context) error) error {
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return b.watcher.Start(running) })
	group.Go(func() error {
		if err := b.server.ServeTLS(b.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve on %s: %w", b.listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		err := library(running)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if b.server.Shutdown(end) != nil {
			_ = b.server.Close()
		}
		return err
	})
	return group.Wait()
}

// unused is the listener of the library, which gets no connections.
type unused struct {
	address net.Addr
	close   sync.Once
	closed  chan struct{}
}

// Accept implements net.Listener.
func (u *unused) Accept() (net.Conn, error) {
	<-u.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (u *unused) Close() error {
	u.close.Do(func() { close(u.closed) })
	return nil
}

// Addr implements net.Listener.
func (u *unused) Addr() net.Addr { return u.address }
