// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// requestWriter is a request written by a goroutine, because the response may arrive before the end of
// its body.
type requestWriter struct {
	body io.ReadCloser
	// left is the unread rest of the body in bytes; negative if the length is unknown.
	left int64
	// read is set at the end of the body; with a Content-Length before EOF, because the response may come
	// first.
	read atomic.Bool
	// done is closed after the write. Then failed is the read error of the body, and err any error,
	// failed included.
	done        chan struct{}
	failed, err error
}

// startWrite starts to write a request. A read error of its body interrupts the wait for the response.
func (c *directConn) startWrite(request *http.Request) *requestWriter {
	s := &requestWriter{body: request.Body, left: -1, done: make(chan struct{})}
	if request.ContentLength > 0 {
		s.left = request.ContentLength
	}
	copied := *request
	copied.Body = s
	go func() {
		if s.err = copied.Write(c.writer); s.err == nil {
			s.err = c.writer.Flush()
		}
		// Before the deadline, so that the interrupted reader finds the cause.
		close(s.done)
		if s.failed != nil {
			_ = c.SetDeadline(pastTime)
		}
	}()
	return s
}

func (s *requestWriter) Read(b []byte) (int, error) {
	n, err := s.body.Read(b)
	if s.left > 0 {
		s.left = max(s.left-int64(n), 0)
	}
	switch {
	case err == io.EOF, err == nil && s.left == 0:
		s.read.Store(true)
	case err != nil:
		s.failed = err
	}
	return n, err
}

func (s *requestWriter) Close() error { return s.body.Close() }

// lastWrite bounds the last write after a complete response; only a backend that does not read blocks it.
const lastWrite = time.Second

// complete reports whether the request is written when its response has ended; if not, it closes the body.
func (s *requestWriter) complete() bool {
	if s == nil {
		return true
	}
	if s.read.Load() {
		timer := time.NewTimer(lastWrite)
		defer timer.Stop()
		select {
		case <-s.done:
		case <-timer.C:
		}
	}
	select {
	case <-s.done:
		return s.err == nil
	default:
		_ = s.body.Close()
		return false
	}
}

// cause returns the read error of the request body if there is one, else err.
func (s *requestWriter) cause(err error) error {
	if s == nil {
		return err
	}
	select {
	case <-s.done:
		if s.failed != nil {
			return s.failed
		}
	default:
	}
	return err
}
