// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const (
	// maxLine bounds a Want: 256 sessions of 0.5 KiB.
	maxLine = 1 << 17
	// reportInterval is the interval of unchanged reports, for their counters.
	reportInterval = 10 * time.Second
	// writeTimeout bounds the writing of a report to an agent that does not read.
	writeTimeout = 5 * time.Second
)

// Sessions is implemented by engine.Engine.
type Sessions interface {
	Set(want Want)
	// Report returns the current report; AwaitReport blocks until it may have changed.
	Report() *Report
	AwaitReport() error
}

// Listen creates the socket, for root only, and replaces that of a previous process.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of the previous process: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("create the socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("restrict the socket to root: %w", err)
	}
	return listener, nil
}

// Serve serves agents until ctx is done. The last Want applies.
func Serve(ctx context.Context, listener net.Listener, sessions Sessions, logger logr.Logger) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	changed := newBroadcast()
	go func() {
		for sessions.AwaitReport() == nil {
			changed.send()
		}
	}()
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		connection, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("accept an agent: %w", err)
		}
		clients.Go(func() { serve(ctx, connection, sessions, changed, logger) })
	}
}

func serve(ctx context.Context, connection net.Conn, sessions Sessions, changed *broadcast, logger logr.Logger) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	go func() {
		defer cancel()
		for decoder := json.NewDecoder(&lines{from: connection}); ; {
			var want Want
			if err := decoder.Decode(&want); err != nil {
				if !errors.Is(err, io.EOF) && ctx.Err() == nil {
					logger.Error(err, "Could not read the agent's request")
				}
				return
			}
			sessions.Set(want)
		}
	}()
	for encoder := json.NewEncoder(connection); ; {
		again := changed.next()
		_ = connection.SetWriteDeadline(time.Now().Add(writeTimeout))
		if err := encoder.Encode(sessions.Report()); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-time.After(reportInterval):
		}
	}
}

// broadcast notifies all waiters.
type broadcast struct {
	mu      sync.Mutex
	channel chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{channel: make(chan struct{})} }

// next returns a channel that the next send closes.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.channel
}

func (b *broadcast) send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.channel)
	b.channel = make(chan struct{})
}

// lines bounds the length of lines, and so the memory per client.
type lines struct {
	from io.Reader
	n    int
}

func (l *lines) Read(buffer []byte) (int, error) {
	n, err := l.from.Read(buffer)
	for _, b := range buffer[:n] {
		if l.n++; b == '\n' {
			l.n = 0
		}
		if l.n > maxLine {
			return 0, fmt.Errorf("a line is longer than %d bytes", maxLine)
		}
	}
	return n, err
}
