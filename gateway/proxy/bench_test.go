// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkForward measures a request over keep-alive connections, with client and backend in the same process.
func BenchmarkForward(b *testing.B) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	body := bytes.Repeat([]byte("x"), 1024)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go respondAll(conn, body)
		}
	}()
	port := freePort(b)
	start(b, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", listener.Addr().String()))...)
	for name, request := range map[string]string{
		"GET":  "GET /path?q=1 HTTP/1.1\r\nHost: a.example.com\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n",
		"POST": "POST /path HTTP/1.1\r\nHost: a.example.com\r\nUser-Agent: bench\r\nContent-Length: 1024\r\n\r\n" + string(body),
	} {
		for _, conns := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/connections=%d", name, conns), func(b *testing.B) {
				b.ReportAllocs()
				begin := processorTime(b)
				var wait sync.WaitGroup
				for i := range conns {
					wait.Go(func() { exchange(b, port, request, (b.N+i)/conns) })
				}
				wait.Wait()
				b.ReportMetric(float64(processorTime(b)-begin)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// exchange sends requests over one connection.
func exchange(b *testing.B, port uint32, request string, count int) {
	conn, err := net.Dial("tcp", client127(port))
	if err != nil {
		b.Error(err)
		return
	}
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for range count {
		_, _ = io.WriteString(conn, request)
		if !readMessage(reader) {
			b.Error("no response")
			return
		}
	}
}

// respondAll answers each request with body.
func respondAll(conn net.Conn, body []byte) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	response := append([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nServer: x\r\nContent-Length: 1024\r\n\r\n"), body...)
	for {
		if !readMessage(reader) {
			return
		}
		if _, err := conn.Write(response); err != nil {
			return
		}
	}
}

func readMessage(reader *bufio.Reader) bool {
	length := 0
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return false
		}
		if strings.HasPrefix(string(line), "Content-Length: 1024") {
			length = 1024
		}
		if len(line) == 2 {
			_, err = reader.Discard(length)
			return err == nil
		}
	}
}

// processorTime returns the time used by the process, which does not depend on the load of the machine.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
