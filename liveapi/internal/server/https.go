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
	// maxHeaderBytes limits a request's header. It is sufficient for the groups of a user.
	maxHeaderBytes = 64 << 10
	// maxStreams limits the concurrent requests of one connection. The cluster's API server opens more
	// connections if necessary.
	maxStreams = 250
	// bufferBytes limits the unread bodies of a connection. It is the minimum that net/http accepts.
	bufferBytes = 64 << 10
	// shutdownTimeout is the time for remaining responses after the library has drained its requests.
	shutdownTimeout = 2 * time.Second
)

// bounded serves HTTPS in place of k8s.io/apiserver, whose limits are not configurable: it reads headers of
// up to 1 MiB for up to 32 seconds, and 256 KiB of each stream's body, before authentication.
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
	// Watches and streams have no time limit. The library limits the time of other requests.
	server.ReadTimeout, server.WriteTimeout = 0, 0
	server.Protocols.SetHTTP2(true)
	server.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: bufferBytes, MaxReceiveBufferPerStream: bufferBytes,
	}
	// Failed handshakes are not logged, because any client can cause them.
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: watcher.GetCertificate,
		// The library verifies the client certificate of the cluster's API server for each request.
		ClientAuth: tls.RequestClientCert,
	}
	return &bounded{listener: listener, server: server, watcher: watcher}, nil
}

// run serves until library returns.
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

// unused is a listener for the library that never accepts a connection.
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
