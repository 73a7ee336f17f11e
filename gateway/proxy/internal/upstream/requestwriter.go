// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/h1"
)

const (
	// maxShortBody is the length up to which a body is read before the request is sent, in the same write.
	maxShortBody = 8 << 10
	// chunkBytes is the content of a chunk, or of a write with a known length.
	chunkBytes = 32 << 10
)

// encodedRequest is a request encoded for HTTP/1.1.
type encodedRequest struct {
	*http.Request
	// bytes are the header and a short body, nil before encode.
	bytes []byte
	// body is the rest of the request, or nil.
	body io.ReadCloser
	// left is the length of body, or h1.Chunked.
	left int64
	// isBodyUsed is set when the write of body begins.
	isBodyUsed bool
	// sent is called when the request is written.
	sent func()
}

var requestBuffers = sync.Pool{New: func() any { return new([]byte) }}

// maxRetained bounds the memory of pooled buffers.
const maxRetained = 16 << 10

// encode encodes the request once, because a retry cannot read a body again. The caller must call free.
func (e *encodedRequest) encode() (err error) {
	if e.bytes != nil {
		return nil
	}
	e.bytes = (*requestBuffers.Get().(*[]byte))[:0]
	if hasBody(e.Request) {
		e.body, e.left = e.Body, h1.Chunked
		if e.ContentLength > 0 {
			e.left = e.ContentLength
		}
	}
	switch {
	case e.left == h1.Chunked && isUsuallyEmpty(e.Method):
		return e.encodeUnlikely()
	case e.left > 0 && e.left <= maxShortBody && !e.expects():
		return e.encodeShort()
	}
	e.bytes, err = h1.AppendRequest(e.bytes, e.Request, e.left)
	return err
}

func (e *encodedRequest) encodeShort() (err error) {
	if e.bytes, err = h1.AppendRequest(e.bytes, e.Request, e.left); err != nil {
		return err
	}
	begin, end := len(e.bytes), len(e.bytes)+int(e.left)
	e.bytes = append(e.bytes, make([]byte, e.left)...)
	if _, err := io.ReadFull(e.body, e.bytes[begin:end]); err != nil {
		return clientError{err}
	}
	e.body, e.left = nil, 0
	return nil
}

func isUsuallyEmpty(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions || method == http.MethodDelete
}

// encodeUnlikely reads the begin of a body that is probably empty. Many backends reject chunks in a GET.
func (e *encodedRequest) encodeUnlikely() error {
	var part [512 + h1.ChunkOverhead + 2]byte
	n, failed := e.body.Read(part[h1.ChunkOverhead : h1.ChunkOverhead+512])
	if failed == io.EOF && n == 0 {
		e.body, e.left = nil, 0
	} else if failed != nil && failed != io.EOF {
		return clientError{failed}
	}
	var err error
	if e.bytes, err = h1.AppendRequest(e.bytes, e.Request, e.left); err != nil || n == 0 {
		return err
	}
	e.bytes = append(e.bytes, h1.FrameChunk(part[:], n)...)
	if failed == io.EOF {
		e.bytes, e.body = h1.AppendLastChunk(e.bytes, e.Trailer), nil
	}
	return nil
}

func (e *encodedRequest) free() {
	if bytes := e.bytes; cap(bytes) <= maxRetained {
		requestBuffers.Put(&bytes)
	}
	e.bytes = nil
}

// expects reports whether the client waits for 100 Continue.
func (e *encodedRequest) expects() bool { return e.Header["Expect"] != nil }

// clientError is an error of the client's request, not of the endpoint.
type clientError struct{ error }

func (e clientError) Unwrap() error { return e.error }

// requestWriter is a body written by a goroutine, because the response may arrive before the end of the body.
type requestWriter struct {
	body io.ReadCloser
	// left is the unread rest of the body in bytes, or h1.Chunked.
	left int64
	// read is set at the end of the body; with a Content-Length before EOF, because the response may come
	// first.
	read atomic.Bool
	// done is closed after the write. Then failed is the read error of the body, and err any error,
	// failed included.
	done        chan struct{}
	failed, err error
}

// startWrite starts to write a body. A read error of the body interrupts the wait for the response.
func (c *directConn) startWrite(request *encodedRequest) *requestWriter {
	s := &requestWriter{body: request.body, left: request.left, done: make(chan struct{})}
	request.isBodyUsed = true
	trailer, sent := request.Trailer, request.sent
	go func() {
		s.err = s.copy(c, trailer)
		_ = s.body.Close()
		if s.err == nil {
			sent()
		}
		// Before the deadline, so that the interrupted reader finds the cause.
		close(s.done)
		if s.failed != nil {
			c.interrupt()
		}
	}()
	return s
}

var chunkBuffers = sync.Pool{New: func() any { return new([h1.ChunkOverhead + chunkBytes + 2]byte) }}

func (s *requestWriter) copy(c *directConn, trailer http.Header) error {
	buffer := chunkBuffers.Get().(*[h1.ChunkOverhead + chunkBytes + 2]byte)
	defer chunkBuffers.Put(buffer)
	isChunked := s.left == h1.Chunked
	for {
		n, err := s.readBody(buffer[h1.ChunkOverhead : h1.ChunkOverhead+chunkBytes])
		if n > 0 {
			part := buffer[h1.ChunkOverhead : h1.ChunkOverhead+n]
			if isChunked {
				part = h1.FrameChunk(buffer[:], n)
			}
			if err := c.write(part); err != nil {
				return err
			}
		}
		if err == nil {
			continue
		}
		switch isEnd := errors.Is(err, io.EOF); {
		case isEnd && isChunked:
			// The server sets the trailer at the end of the body.
			return c.write(h1.AppendLastChunk(nil, trailer))
		case isEnd && s.left > 0:
			s.failed = io.ErrUnexpectedEOF
			return s.failed
		case isEnd:
			return nil
		}
		return err
	}
}

func (s *requestWriter) readBody(b []byte) (int, error) {
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
	select {
	case <-s.done:
		if s.failed != nil {
			return clientError{s.failed}
		}
	default:
	}
	return err
}
