// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// sending is a request with a body on its way. A goroutine writes it, since the response may
// come before the body's end.
type sending struct {
	body io.ReadCloser
	// left is how much of the body has not been read, in bytes; negative where its length is not
	// known.
	left int64
	// read says that the whole body has been read. With a length that is so before its end was
	// seen: the last bytes may reach the backend first.
	read atomic.Bool
	// done is closed at the end. Then failed is why the body could not be read, and err why the
	// request could not be written, which includes that.
	done        chan struct{}
	failed, err error
}

// begin writes a request. Where its body cannot be read, the wait for the response ends.
func (c *directConn) begin(request *http.Request) *sending {
	s := &sending{body: request.Body, left: -1, done: make(chan struct{})}
	if request.ContentLength > 0 {
		s.left = request.ContentLength
	}
	copied := *request
	copied.Body = s
	go func() {
		if s.err = copied.Write(c.writer); s.err == nil {
			s.err = c.writer.Flush()
		}
		// First, so that whoever the deadline wakes finds the cause.
		close(s.done)
		if s.failed != nil {
			_ = c.SetDeadline(past)
		}
	}()
	return s
}

// Read implements io.Reader, for what writes the request.
func (s *sending) Read(b []byte) (int, error) {
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

// Close implements io.Closer.
func (s *sending) Close() error { return s.body.Close() }

// lastWrite is how long the end of a request may take whose response is complete. It is a write
// of a few bytes, which has to wait only for a backend that answers what it does not read.
const lastWrite = time.Second

// complete reports whether the whole request has been written, when its response is complete.
// If not, nobody reads the rest of the body.
func (s *sending) complete() bool {
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

// cause is why there is no response, if that is the request's body.
func (s *sending) cause(err error) error {
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
