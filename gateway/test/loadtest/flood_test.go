// SPDX-License-Identifier: Apache-2.0

package loadtest

import (
	"bytes"
	"flag"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// lasting is the duration of a flood of frames.
var lasting = flag.Duration("lasting", 5*time.Second, "used by the test itself: duration of a flood of frames")

type frames func(framer *http2.Framer, block []byte, next uint32) uint32

// floods are frames without a limit in the protocol, after a request on stream 1 whose body does not end.
var floods = map[string]frames{
	// CVE-2023-44487: streams that are opened and reset immediately.
	"resets": func(framer *http2.Framer, block []byte, next uint32) uint32 {
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: next, BlockFragment: block, EndStream: true, EndHeaders: true})
		_ = framer.WriteRSTStream(next, http2.ErrCodeCancel)
		return next + 2
	},
	// CVE-2025-8671: streams that the server resets because of the client's errors.
	"faults": func(framer *http2.Framer, block []byte, next uint32) uint32 {
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: next, BlockFragment: block, EndStream: true, EndHeaders: true})
		_ = framer.WriteRawFrame(http2.FrameWindowUpdate, 0, next, []byte{0, 0, 0, 0})
		return next + 2
	},
	"pings": func(framer *http2.Framer, _ []byte, next uint32) uint32 {
		_ = framer.WritePing(false, [8]byte{})
		return next
	},
	"settings": func(framer *http2.Framer, _ []byte, next uint32) uint32 {
		_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16})
		return next
	},
	"priorities": func(framer *http2.Framer, _ []byte, next uint32) uint32 {
		_ = framer.WritePriority(1, http2.PriorityParam{StreamDep: 3, Weight: 7})
		return next
	},
	"windows": func(framer *http2.Framer, _ []byte, next uint32) uint32 {
		_ = framer.WriteWindowUpdate(1, 1)
		return next
	},
	"nothings": func(framer *http2.Framer, _ []byte, next uint32) uint32 {
		_ = framer.WriteData(1, false, nil)
		return next
	},
	"bytes": func(framer *http2.Framer, _ []byte, next uint32) uint32 {
		_ = framer.WriteData(1, false, []byte{'x'})
		return next
	},
}

// flood sends frames until the end of its duration, and opens a new connection when the proxy closes one.
func flood(of frames) func(index int) error {
	return func(index int) error {
		for end := time.Now().Add(*lasting); time.Now().Before(end); {
			conn, err := dial(index, "h2")
			if err != nil {
				return err
			}
			requests.Add(1)
			_ = conn.SetDeadline(end)
			floodOne(conn, of)
			_ = conn.Close()
			if time.Now().Before(end) {
				closed.Add(1)
			}
		}
		return nil
	}
}

func floodOne(conn net.Conn, of frames) {
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	var batch bytes.Buffer
	framer := http2.NewFramer(&batch, nil)
	batch.WriteString(http2.ClientPreface)
	_ = framer.WriteSettings()
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("POST", "/held"), EndHeaders: true})
	get, next := block("GET", "/"), uint32(3)
	for {
		for range 100 {
			next = of(framer, get, next)
			sent.Add(1)
		}
		if _, err := conn.Write(batch.Bytes()); err != nil {
			return
		}
		batch.Reset()
	}
}

func block(method, path string) []byte {
	var encoded bytes.Buffer
	encoder := hpack.NewEncoder(&encoded)
	for name, value := range map[string]string{":method": method, ":scheme": "https", ":authority": hostname, ":path": path} {
		_ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: true})
	}
	return encoded.Bytes()
}
