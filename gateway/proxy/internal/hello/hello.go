// SPDX-License-Identifier: Apache-2.0

// Package hello reads what a TLS client asks for without answering it.
package hello

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// errRead ends the handshake once the ClientHello is known.
var errRead = errors.New("the ClientHello is read")

// Mark is the first bytes of a TLS connection. They are as far as the random value of the ClientHello,
// so no two connections have the same, but where one is passed on (RFC 8446, section 4.1.2).
type Mark [43]byte

// Hello is what a client asks for.
type Hello struct {
	ServerName string
	Mark       Mark
}

// Read reads a ClientHello, however it is cut into segments and records. The connection that it returns
// gives the same bytes again.
func Read(conn net.Conn, limit time.Duration) (read Hello, again net.Conn, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return Hello{}, nil, fmt.Errorf("set the time limit of a ClientHello: %w", err)
	}
	recorder := &recorder{Conn: conn}
	// crypto/tls reads it, so what is routed is what a server would understand.
	err = tls.Server(recorder, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			read.ServerName = hello.ServerName
			return nil, errRead
		},
	}).Handshake()
	if !errors.Is(err, errRead) {
		return Hello{}, nil, fmt.Errorf("read the ClientHello from %s: %w", conn.RemoteAddr(), err)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return Hello{}, nil, fmt.Errorf("take the time limit of a ClientHello away: %w", err)
	}
	copy(read.Mark[:], recorder.read.Bytes())
	return read, &replay{Conn: conn, reader: io.MultiReader(&recorder.read, conn)}, nil
}

// recorder keeps what is read, and swallows the alert at the end.
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

// replay gives first what was read before.
type replay struct {
	net.Conn
	reader io.Reader
}

func (r *replay) Read(b []byte) (int, error) { return r.reader.Read(b) }

// NetConn gives the connection itself.
func (r *replay) NetConn() net.Conn { return r.Conn }

// CloseWrite ends one direction, where the connection can.
func (r *replay) CloseWrite() error {
	if half, ok := r.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return r.Conn.Close()
}
