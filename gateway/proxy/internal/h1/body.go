// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
)

type framing int

const (
	byLength framing = iota
	chunked
	toEnd
)

// body is the content of a response. Read returns io.EOF at the end of the message, with its last bytes if possible.
type body struct {
	r        *bufio.Reader
	response *http.Response
	framing  framing
	// left is the unread rest of the content or of the current chunk in bytes.
	left int64
	// begun is set after the first chunk's size.
	begun bool
	err   error
}

func (b *body) Read(p []byte) (n int, err error) {
	if b.err != nil {
		return 0, b.err
	}
	switch b.framing {
	case chunked:
		n, err = b.readChunks(p)
	case toEnd:
		n, err = b.r.Read(p)
	default:
		n, err = b.readLeft(p)
		if err == nil && b.left == 0 {
			err = io.EOF
		}
	}
	b.err = err
	return n, err
}

// Close implements io.Closer; it does not read the rest.
func (b *body) Close() error { return nil }

func (b *body) readLeft(p []byte) (int, error) {
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	if b.left -= int64(n); err == io.EOF && b.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// readChunks reads the buffered chunks, or waits for one (section 7.1).
func (b *body) readChunks(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		if b.left > 0 {
			var read int
			read, err = b.readLeft(p[n:])
			n += read
			if b.left > 0 {
				return n, err
			}
			continue
		}
		if n > 0 && !b.isNextBuffered() {
			return n, nil
		}
		err = b.nextChunk()
	}
	return n, err
}

// isNextBuffered reports whether nextChunk would not block.
func (b *body) isNextBuffered() bool {
	buffered, _ := b.r.Peek(b.r.Buffered())
	next, found := bytes.CutPrefix(buffered, []byte("\r\n"))
	if !found || bytes.IndexByte(next, '\n') < 0 {
		return false
	}
	return next[0] != '0' || bytes.Contains(next, []byte("\r\n\r\n"))
}

// nextChunk reads up to the content of the next chunk; io.EOF is the end of the message.
func (b *body) nextChunk() error {
	if b.begun {
		if line, err := b.line(); err != nil || len(line) > 0 {
			return orInvalid(err)
		}
	}
	b.begun = true
	line, err := b.line()
	if err != nil {
		return err
	}
	size, ok := chunkSize(line)
	if !ok {
		return ErrChunk
	}
	if b.left = size; size > 0 {
		return nil
	}
	return b.readTrailer()
}

func orInvalid(err error) error {
	if err == nil {
		err = ErrChunk
	}
	return err
}

// line returns a line without its CRLF. In the framing of chunks a single LF is invalid.
func (b *body) line() ([]byte, error) {
	line, err := b.r.ReadSlice('\n')
	if err != nil {
		switch {
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		case errors.Is(err, bufio.ErrBufferFull):
			err = ErrChunk
		}
		return nil, err
	}
	line, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok {
		return nil, ErrChunk
	}
	return line, nil
}

// maxSizeDigits keeps a chunk's size within int64.
const maxSizeDigits = 15

// chunkSize parses a chunk's size and ignores extensions, which may follow whitespace (section 7.1.1).
func chunkSize(line []byte) (size int64, ok bool) {
	digits := 0
	for digits < len(line) && digits <= maxSizeDigits {
		value := hexValue(line[digits])
		if value < 0 {
			break
		}
		size = size<<4 | int64(value)
		digits++
	}
	extension := bytes.TrimLeft(line[digits:], " \t")
	if digits == 0 || digits > maxSizeDigits || len(extension) > 0 && extension[0] != ';' {
		return 0, false
	}
	return size, isValue(string(extension))
}

func hexValue(c byte) int {
	switch {
	case isDigit(c):
		return int(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// maxTrailerBytes bounds the trailer section.
const maxTrailerBytes = 4 << 10

// readTrailer adds the trailer section to Response.Trailer (section 7.1.2).
func (b *body) readTrailer() error {
	section, err := readSection(b.r, nil, maxTrailerBytes)
	if err != nil {
		return err
	}
	if len(section) <= 2 {
		return io.EOF
	}
	trailer, err := parseFields(string(section))
	if err != nil {
		return err
	}
	if b.response.Trailer == nil {
		b.response.Trailer = trailer
	} else {
		for name, values := range trailer {
			b.response.Trailer[name] = values
		}
	}
	return io.EOF
}
