// SPDX-License-Identifier: Apache-2.0

// Package clienthello parses the ClientHello of a TLS connection without consuming it.
package clienthello

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// errRead aborts the handshake after the ClientHello.
var errRead = errors.New("the ClientHello is read")

// ID is the first bytes of a TLS connection through the ClientHello's random value. Only forwarded connections
// share it (RFC 8446, section 4.1.2).
type ID [43]byte

// Info is the parsed part of a ClientHello.
type Info struct {
	ServerName string
	ID         ID
}

// Read parses a ClientHello of any segments and records. The returned connection replays its bytes.
func Read(conn net.Conn, limit time.Duration) (read Info, again net.Conn, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return Info{}, nil, fmt.Errorf("set the read deadline: %w", err)
	}
	recorder := &recorder{Conn: conn}
	// Parsing with crypto/tls ensures the same interpretation as in a server's handshake.
	err = tls.Server(recorder, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			read.ServerName = hello.ServerName
			return nil, errRead
		},
	}).Handshake()
	if !errors.Is(err, errRead) {
		return Info{}, nil, fmt.Errorf("read the ClientHello from %s: %w", conn.RemoteAddr(), err)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return Info{}, nil, fmt.Errorf("reset the read deadline: %w", err)
	}
	copy(read.ID[:], recorder.read.Bytes())
	return read, &replay{Conn: conn, reader: io.MultiReader(&recorder.read, conn)}, nil
}

// recorder records reads and discards writes, such as the final alert.
type recorder struct {
	net.Conn
	read bytes.Buffer
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.read.Write(b[:n])
	return n, err
}

func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }

type replay struct {
	net.Conn
	reader io.Reader
}

func (r *replay) Read(b []byte) (int, error) { return r.reader.Read(b) }

func (r *replay) NetConn() net.Conn { return r.Conn }

// CloseWrite half-closes the connection if supported, else closes it.
func (r *replay) CloseWrite() error {
	if half, ok := r.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return r.Conn.Close()
}
