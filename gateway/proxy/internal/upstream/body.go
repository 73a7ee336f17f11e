// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"io"
	"net/http"
	"sync/atomic"
)

func once(f func()) func() {
	var done atomic.Bool
	return func() {
		if !done.Swap(true) {
			f()
		}
	}
}

func hasBody(request *http.Request) bool {
	return request.Body != nil && request.Body != http.NoBody
}

func closeBody(request *http.Request) {
	if request.Body != nil {
		_ = request.Body.Close()
	}
}

// guardedBody ignores Close before the first Read, so that a retry can still send the body.
type guardedBody struct {
	io.ReadCloser
	touched atomic.Bool
	// sent is called at the end of the body; it may be nil.
	sent func()
}

func (g *guardedBody) Read(b []byte) (int, error) {
	g.touched.Store(true)
	n, err := g.ReadCloser.Read(b)
	if err == io.EOF && g.sent != nil {
		g.sent()
	}
	return n, err
}

func (g *guardedBody) Close() error {
	if g.touched.Load() {
		return g.ReadCloser.Close()
	}
	return nil
}

type releasingBody struct {
	io.ReadCloser
	release func()
}

func (r *releasingBody) Close() error {
	r.release()
	return r.ReadCloser.Close()
}

// upgradedBody is both directions of a connection after 101 Switching Protocols.
type upgradedBody struct {
	io.ReadWriteCloser
	release func()
}

func (u *upgradedBody) Close() error {
	u.release()
	return u.ReadWriteCloser.Close()
}
