// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// difference is a kind of message for which ReadResponse and net/http may differ.
type difference struct {
	section, reason string
	applies         func(text string) bool
}

func matching(pattern string) func(string) bool { return regexp.MustCompile(pattern).MatchString }

// differences are the permitted differences, with the section of RFC 9112 that ReadResponse implements.
var differences = []difference{
	{"2.3, 4", "net/http accepts other major versions, several spaces and signs in the status line, and ignores control bytes in the reason phrase", func(text string) bool {
		line, _, _ := strings.Cut(text, "\n")
		return !matching(`^HTTP/1\.[0-9] [1-9][0-9]{2}( [\t -~\x80-\xff]*)?\r?$`)(line)
	}},
	{"5.1", "net/http retains spaces in a field name", matching(`(?m)^[^:\r\n]*[ \t][^:\r\n]*:`)},
	{"5.2", "net/http accepts a line without a colon if a folded line completes it", matching(`(?m)^[^:\r\n]*\r?\n[ \t]`)},
	{"6.1", "net/http ignores Transfer-Encoding in HTTP/1.0, and accepts it twice without content", func(text string) bool {
		return matching(`(?i)\ntransfer-encoding[ \t]*:`)(text) && (matching(`^HTTP/1\.0`)(text) || !matching(`(?i)\ntransfer-encoding[ \t]*:[ \t]*chunked[ \t]*\r?\n`)(text) ||
			matching(`(?is)\ntransfer-encoding[ \t]*:.*\n(transfer-encoding[ \t]*:|[ \t])`)(text))
	}},
	{"6.3", "net/http reuses the connection after a message with both framing headers", matching(`(?is)\n(content-length:.*\ntransfer-encoding|transfer-encoding:.*\ncontent-length):`)},
	{"7.1", "net/http accepts single LFs in the trailer section, control bytes in extensions, and sizes of 16 digits, but no space before an extension", func(text string) bool {
		_, content, _ := strings.Cut(text, "\r\n\r\n")
		return matching(`(?i)\ntransfer-encoding:`)(text) &&
			matching(`[^\r]\n|\r[^\n]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?i:\n0*[0-9a-f]{16}[;\r \t]|\n[0-9a-f]+[ \t]+;)`)("\n"+content)
	}},
	{"6.5", "net/http rejects framing fields in Trailer", matching(`(?i)\ntrailer:`)},
}

type parsed struct {
	status       int
	header       http.Header
	body         string
	isIncomplete bool
	trailer      http.Header
	length       int64
	isLast       bool
	// rest is the number of bytes after the message.
	rest int
}

func read(text, method string, parse func(*bufio.Reader) (*http.Response, error)) (parsed, error) {
	reader := bufio.NewReader(strings.NewReader(text))
	response, err := parse(reader)
	if err != nil {
		return parsed{}, err
	}
	body, err := io.ReadAll(response.Body)
	rest, _ := io.Copy(io.Discard, reader)
	for _, values := range response.Header {
		for i := range values {
			// net/http retains the space of an empty folded line.
			values[i] = trim(values[i])
		}
	}
	response.Header.Del("Trailer")
	response.Header.Del("Connection")
	if response.Header["Pragma"] != nil {
		// net/http adds Cache-Control.
		delete(response.Header, "Cache-Control")
	}
	p := parsed{response.StatusCode, response.Header, string(body), err != nil, response.Trailer, response.ContentLength, response.Close, int(rest)}
	if len(p.trailer) == 0 {
		p.trailer = nil
	}
	if p.isIncomplete {
		p.rest, p.trailer = 0, nil
	}
	return p, nil
}

// compare parses a message with ReadResponse and net/http.
func compare(t *testing.T, text, method string) {
	t.Helper()
	var buffer []byte
	ours, err := read(text, method, func(r *bufio.Reader) (*http.Response, error) { return ReadResponse(r, method, &buffer) })
	theirs, theirErr := read(text, method, func(r *bufio.Reader) (*http.Response, error) {
		return http.ReadResponse(r, &http.Request{Method: method})
	})
	if err != nil && theirErr != nil || err == nil && theirErr == nil && reflect.DeepEqual(ours, theirs) {
		return
	}
	for _, d := range differences {
		if d.applies(text) {
			return
		}
	}
	t.Errorf("%s %q:\nh1       %+v, %v\nnet/http %+v, %v", method, text, ours, err, theirs, theirErr)
}

var seeds = []string{
	"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nfineHTTP/1.1",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n4;a=b\r\nfine\r\n1f \r\n0123456789abcdef0123456789abcde\r\n0\r\nX-A: b\r\n\r\nrest",
	"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nfine",
	"HTTP/1.1 204 No Content\r\nServer: a\r\n\r\n",
	"HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n",
	"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nLink: </b>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
	"HTTP/1.1 200\r\nA: b\r\n c\r\nPragma: no-cache\r\n\r\nto the end",
	"HTTP/1.1 200 \nA: b\nC:d \n\nfine",
}

// tokens are inserted by mutations.
var tokens = []string{
	"\r", "\n", "\r\n", " ", "\t", ":", ",", ";", "\x00", "\x7f", "\xff", "0", "-", "+", "f", "chunked", "close", "HTTP/1.0", "HTTP/2.0",
	"Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n", "Connection: close\r\n", "0\r\n\r\n", "4\r\nfine\r\n",
}

func mutate(text string, random *rand.Rand) string {
	b := []byte(text)
	for range 1 + random.IntN(3) {
		at := random.IntN(len(b) + 1)
		switch random.IntN(4) {
		case 0:
			b = append(b[:at:at], b[min(at+1+random.IntN(3), len(b)):]...)
		case 1:
			if at < len(b) {
				b[at] = byte(random.IntN(256))
			}
		case 2:
			end := min(at+random.IntN(20), len(b))
			b = append(b[:end:end], b[at:]...)
		default:
			b = append(b[:at:at], append([]byte(tokens[random.IntN(len(tokens))]), b[at:]...)...)
		}
	}
	return string(b)
}

// TestMutations compares mutated messages with net/http.
func TestMutations(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		method := http.MethodGet
		if random.IntN(4) == 0 {
			method = http.MethodHead
		}
		compare(t, mutate(seeds[random.IntN(len(seeds))], random), method)
		if t.Failed() {
			return
		}
	}
}

func FuzzResponse(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, text string, isHead bool) {
		method := http.MethodGet
		if isHead {
			method = http.MethodHead
		}
		compare(t, text, method)
	})
}

// TestDifferences checks both parsers on an example of each permitted difference.
func TestDifferences(t *testing.T) {
	const chunkedHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for text, want := range map[string]struct {
		section            string
		accepted, byOthers bool
	}{
		"HTTP/2.0 200 OK\r\n\r\n":                               {"2.3", false, true},
		"HTTP/1.1  200 OK\r\n\r\n":                              {"4", false, true},
		"HTTP/1.1 +20 OK\r\n\r\n":                               {"4", false, true},
		"HTTP/1.1 200 O\rK\r\n\r\n":                             {"4", false, true},
		"HTTP/1.1 200 OK\r\nA : b\r\n\r\n":                      {"5.1", true, true},
		"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n": {"6.1", false, true},
		chunkedHead + "0000000000000001\r\na\r\n0\r\n\r\n":      {"7.1", false, true},
		chunkedHead + "1;a\x01\r\na\r\n0\r\n\r\n":               {"7.1", false, true},
		chunkedHead + "1\na\r\n0\r\n\r\n":                       {"7.1", false, false},
	} {
		var buffer []byte
		accepts := func(parse func(*bufio.Reader) (*http.Response, error)) bool {
			p, err := read(text, http.MethodGet, parse)
			return err == nil && !p.isIncomplete
		}
		ours := accepts(func(r *bufio.Reader) (*http.Response, error) { return ReadResponse(r, http.MethodGet, &buffer) })
		theirs := accepts(func(r *bufio.Reader) (*http.Response, error) { return http.ReadResponse(r, nil) })
		if ours != want.accepted || theirs != want.byOthers {
			t.Errorf("%q (section %s): accepted %v, by net/http %v", text, want.section, ours, theirs)
		}
	}
}

// TestSegmentedMessages checks that the result does not depend on the segments of a message.
func TestSegmentedMessages(t *testing.T) {
	for _, seed := range seeds {
		var buffer []byte
		parse := func(r *bufio.Reader) (*http.Response, error) { return ReadResponse(r, http.MethodGet, &buffer) }
		want, err := read(seed, http.MethodGet, parse)
		if err != nil {
			t.Fatal(err)
		}
		response, err := ReadResponse(bufio.NewReader(iotestOneByte{strings.NewReader(seed)}), http.MethodGet, &buffer)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if string(body) != want.body || err != nil {
			t.Errorf("%q: body %q, %v; want %q", seed, body, err, want.body)
		}
	}
}

type iotestOneByte struct{ io.Reader }

func (o iotestOneByte) Read(b []byte) (int, error) { return o.Reader.Read(b[:min(len(b), 1)]) }

// TestChunksDoNotBlock checks that Read returns received content before the next chunk arrives.
func TestChunksDoNotBlock(t *testing.T) {
	for _, rest := range []string{"", "\r", "\r\n", "\r\n4", "\r\n0\r\n", "\r\n0\r\nX-A: b\r\n"} {
		reader, writer := io.Pipe()
		go func() {
			_, _ = io.WriteString(writer, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine"+rest)
		}()
		var buffer []byte
		response, err := ReadResponse(bufio.NewReader(reader), http.MethodGet, &buffer)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		if n, err := response.Body.Read(b); string(b[:n]) != "fine" || err != nil {
			t.Errorf("%q: %q, %v", rest, b[:n], err)
		}
		_ = writer.Close()
	}
}

func TestAppendRequest(t *testing.T) {
	for name, test := range map[string]struct {
		method, target, host string
		header               http.Header
		trailer              http.Header
		length               int64
		want                 string
	}{
		"GET":             {"GET", "/a?b", "x.example", http.Header{"Host": {"no"}, "A": {"b", "c"}}, nil, 0, "GET /a?b HTTP/1.1\r\nHost: x.example\r\nA: b\r\nA: c\r\n\r\n"},
		"empty POST":      {"POST", "/", "x", nil, nil, 0, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"},
		"length":          {"PUT", "/", "x", http.Header{"Content-Length": {"1"}}, nil, 4, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"},
		"chunked":         {"POST", "/", "x", http.Header{"Transfer-Encoding": {"gzip"}}, http.Header{"B": nil, "A": nil}, Chunked, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: A, B\r\n\r\n"},
		"control bytes":   {"GET", "/", "x", http.Header{"A": {"b\r\nC: d\x00"}, "In valid": {"e"}}, nil, 0, "GET / HTTP/1.1\r\nHost: x\r\nA: b  C: d \r\n\r\n"},
		"OPTIONS *":       {"OPTIONS", "*", "x", nil, nil, 0, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"},
		"invalid method":  {"G T", "/", "x", nil, nil, 0, ""},
		"invalid host":    {"GET", "/", "x\r\n", nil, nil, 0, ""},
		"no value, agent": {"GET", "/", "x", http.Header{"User-Agent": nil}, nil, 0, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
	} {
		r, err := http.NewRequest(http.MethodGet, "http://x"+strings.TrimPrefix(test.target, "*"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if test.target == "*" {
			r.URL.Path = "*"
		}
		r.Method, r.Host, r.Header, r.Trailer = test.method, test.host, test.header, test.trailer
		got, err := AppendRequest(nil, r, test.length)
		if (err != nil) != (test.want == "") || err == nil && string(got) != test.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, test.want)
		}
	}
}

func TestChunks(t *testing.T) {
	for _, n := range []int{1, 15, 16, 32 << 10} {
		b := make([]byte, ChunkOverhead+n+2)
		copy(b[ChunkOverhead:], bytes.Repeat([]byte("x"), n))
		text := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + string(FrameChunk(b, n)) + string(AppendLastChunk(nil, http.Header{"A": {"b"}}))
		var buffer []byte
		p, err := read(text, http.MethodGet, func(r *bufio.Reader) (*http.Response, error) { return ReadResponse(r, http.MethodGet, &buffer) })
		if err != nil || len(p.body) != n || p.trailer.Get("A") != "b" || p.rest != 0 {
			t.Errorf("%d bytes: %d bytes, trailer %v, %v", n, len(p.body), p.trailer, err)
		}
	}
}
