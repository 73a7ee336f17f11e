// SPDX-License-Identifier: Apache-2.0

package loadtest

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

var (
	attack  = flag.String("attack", "", "used by the test itself: attack with \"hellos\", \"idle\" connections, \"streams\", \"questions\", \"guesses\" of passwords or a flood of frames")
	target  = flag.String("target", "", "host:port to attack")
	count   = flag.Int("count", 0, "number of connections")
	waves   = flag.Int("waves", 1, "number of repetitions of hellos")
	sources = flag.Int("sources", 1, "number of source addresses")
	first   = flag.Int("first", 2, "last byte of the first source address, 127.1.0.x")
)

// done is written after everything is sent. Connections stay open until the attacker's input ends.
const done = "done\n"

func TestMain(m *testing.M) {
	flag.Parse()
	opened := 0
	switch *attack {
	case "":
		os.Exit(m.Run())
	case "hellos":
		for range *waves {
			opened += floodHellos()
		}
	case "idle":
		opened = all(*count, 64, openIdle)
	case "guesses":
		opened = all(*count, *count, guess)
	case "streams", "questions":
		opened = all(*count, *count, floodStreams)
	default:
		opened = all(*count, *count, flood(floods[*attack]))
	}
	fmt.Printf("%s: %d of %d connections, %d open, %d requests, %d refused, %d frames\n%s",
		*attack, opened, *count**waves, opened-int(closed.Load()), requests.Load(), refused.Load(), sent.Load(), done)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// closed counts connections closed by the proxy, requests and refused requests, sent the frames of a flood.
var closed, requests, refused, sent atomic.Int64

// all opens connections, atOnce at a time, and returns the number of opened ones.
func all(count, atOnce int, open func(index int) error) int {
	var group sync.WaitGroup
	var opened atomic.Int64
	next := make(chan int)
	for range atOnce {
		group.Go(func() {
			for index := range next {
				if open(index) == nil {
					opened.Add(1)
				}
			}
		})
	}
	for index := range count {
		next <- index
	}
	close(next)
	group.Wait()
	return int(opened.Load())
}

func dial(index int, protocol string) (net.Conn, error) {
	from := &net.TCPAddr{IP: net.IPv4(127, 1, 0, byte(*first+index%*sources))}
	dialer := net.Dialer{LocalAddr: from, Timeout: time.Minute}
	conn, err := dialer.Dial("tcp", *target)
	if err != nil || protocol == "" {
		return conn, err
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: hostname, NextProtos: []string{protocol}})
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if err := secure.Handshake(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return secure, nil
}

func openIdle(index int) error {
	conn, err := dial(index, "h2")
	if err != nil {
		return err
	}
	// The proxy closes a connection without a preface after its header timeout.
	if _, err := io.WriteString(conn, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		return err
	}
	// The plain connection is read from here, because crypto/tls uses more memory.
	below := conn.(*tls.Conn).NetConn()
	go func() {
		_, _ = io.Copy(io.Discard, below)
		_ = below.Close()
		closed.Add(1)
	}()
	return nil
}

// floodHellos starts TLS handshakes with one ClientHello, so that the attacker needs no CPU time.
func floodHellos() (opened int) {
	var group sync.WaitGroup
	conns := make([]net.Conn, *count)
	opened = all(*count, 64, func(index int) (err error) {
		conns[index], err = dial(index, "")
		return err
	})
	hello := clientHello()
	for _, conn := range conns {
		if conn == nil {
			continue
		}
		_, _ = conn.Write(hello)
		group.Go(func() {
			// A response proves that the proxy has computed its part of the handshake.
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.Close()
		})
	}
	group.Wait()
	return opened
}

func clientHello() []byte {
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, &tls.Config{InsecureSkipVerify: true, ServerName: hostname}).Handshake()
	}()
	message := make([]byte, 4096)
	n, _ := far.Read(message)
	_ = far.Close()
	return message[:n]
}

// floodStreams opens 250 requests of 60 kB of headers, held by the backend, by the authorization service
// ("questions"), or by a flow control window of 0.
func floodStreams(index int) error {
	conn, err := dial(index, "h2")
	if err != nil {
		return err
	}
	path, window := "/held", uint32(1<<16)
	switch {
	case index%2 == 1:
		path, window = "/", 0
	case *attack == "questions":
		path = "/asked"
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}); err != nil {
		return err
	}
	go readAnswers(conn, framer)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	value := strings.Repeat("x", 15_000)
	for stream := range uint32(250) {
		block.Reset()
		for _, field := range []string{":method GET", ":scheme https", ":authority " + hostname, ":path " + path,
			"x-a " + value, "x-b " + value, "x-c " + value, "x-d " + value} {
			name, value, _ := strings.Cut(field, " ")
			_ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
		}
		if err := writeHeader(framer, 2*stream+1, block.Bytes()); err != nil {
			return err
		}
		requests.Add(1)
	}
	return nil
}

func writeHeader(framer *http2.Framer, stream uint32, block []byte) error {
	const most = 16 << 10
	err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block[:most], EndStream: true})
	for block = block[most:]; err == nil && len(block) > 0; {
		part := block[:min(len(block), most)]
		block = block[len(part):]
		err = framer.WriteContinuation(stream, len(block) == 0, part)
	}
	return err
}

func readAnswers(conn net.Conn, framer *http2.Framer) {
	defer conn.Close()
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			closed.Add(1)
			return
		}
		if answer, ok := frame.(*http2.MetaHeadersFrame); ok && answer.PseudoValue("status") == "503" {
			refused.Add(1)
		}
	}
}

type attacker struct {
	command *exec.Cmd
	stdin   io.Closer
	// output receives the output up to done.
	output chan string
}

func startAttack(t *testing.T, arguments ...string) *attacker {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	a := &attacker{output: make(chan string, 1)}
	a.command = exec.Command("nice", append([]string{"-n", "19", self}, arguments...)...)
	a.stdin, err = a.command.StdinPipe()
	must(t, err)
	stdout, err := a.command.StdoutPipe()
	must(t, err)
	a.command.Stderr = os.Stderr
	must(t, a.command.Start())
	go func() {
		var output strings.Builder
		for lines := bufio.NewScanner(stdout); lines.Scan() && lines.Text()+"\n" != done; {
			output.WriteString(lines.Text())
		}
		a.output <- output.String()
	}()
	t.Cleanup(func() {
		_ = a.stdin.Close()
		_ = a.command.Wait()
	})
	return a
}
