// SPDX-License-Identifier: Apache-2.0

package clienthello

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// clientHello returns records of at most size bytes. More protocols make it longer.
func clientHello(t *testing.T, protocols, size int) []byte {
	t.Helper()
	var written bytes.Buffer
	config := &tls.Config{ServerName: "a.example.com", InsecureSkipVerify: true}
	for range protocols {
		config.NextProtos = append(config.NextProtos, strings.Repeat("p", 200))
	}
	if err := tls.Client(&sink{written: &written}, config).Handshake(); err == nil {
		t.Fatal("a handshake without a peer succeeded")
	}
	var message []byte
	for records := written.Bytes(); len(records) > 0; {
		length := int(binary.BigEndian.Uint16(records[3:]))
		message = append(message, records[5:5+length]...)
		records = records[5+length:]
	}
	var cut []byte
	for len(message) > 0 {
		n := min(len(message), size)
		cut = append(cut, 22, 3, 1)
		cut = binary.BigEndian.AppendUint16(cut, uint16(n))
		cut = append(cut, message[:n]...)
		message = message[n:]
	}
	return cut
}

type sink struct {
	net.Conn
	written *bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error)     { return s.written.Write(b) }
func (s *sink) Read([]byte) (int, error)        { return 0, io.EOF }
func (s *sink) Close() error                    { return nil }
func (s *sink) SetDeadline(time.Time) error     { return nil }
func (s *sink) SetReadDeadline(time.Time) error { return nil }

func read(t *testing.T, segments ...[]byte) {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	go func() {
		for _, segment := range segments {
			if _, err := client.Write(segment); err != nil {
				return
			}
		}
		_, _ = client.Write([]byte("rest"))
		_ = client.Close()
	}()
	hello, again, err := Read(server, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if hello.ServerName != "a.example.com" {
		t.Fatalf("server name %q; want a.example.com", hello.ServerName)
	}
	if sent := bytes.Join(segments, nil); !bytes.HasPrefix(sent, hello.ID[:]) {
		t.Fatalf("ID = %x, but %x was sent", hello.ID, sent[:len(hello.ID)])
	}
	got, err := io.ReadAll(again)
	if err != nil {
		t.Fatal(err)
	}
	if want := append(bytes.Join(segments, nil), "rest"...); !bytes.Equal(got, want) {
		t.Fatalf("%d bytes are replayed; want %d", len(got), len(want))
	}
}

func TestReadAtAnySplit(t *testing.T) {
	whole := clientHello(t, 0, 16384)
	if len(whole) < 1400 {
		t.Errorf("the ClientHello has %d bytes; want a post-quantum one in several segments", len(whole))
	}
	for cut := 1; cut < len(whole); cut++ {
		read(t, whole[:cut], whole[cut:])
	}
}

func TestReadInManyRecords(t *testing.T) {
	read(t, clientHello(t, 0, 1))
	read(t, clientHello(t, 0, 100))
}

func TestReadAbove16KiB(t *testing.T) {
	long := clientHello(t, 150, 16384)
	if len(long) < 20_000 {
		t.Fatalf("the ClientHello has %d bytes; want more than one record", len(long))
	}
	read(t, long)
}

func TestReadRefuses(t *testing.T) {
	for name, sent := range map[string]string{
		"plain HTTP":       "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"truncated record": "\x16\x03\x01",
		"alert":            "\x15\x03\x01\x00\x02\x02\x28",
	} {
		client, server := net.Pipe()
		go func() {
			_, _ = client.Write([]byte(sent))
			_ = client.Close()
		}()
		if _, _, err := Read(server, 10*time.Second); err == nil {
			t.Errorf("%s was accepted as a ClientHello", name)
		}
		_ = server.Close()
	}
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	if _, _, err := Read(server, time.Millisecond); err == nil {
		t.Error("no error for a connection without data")
	}
}
