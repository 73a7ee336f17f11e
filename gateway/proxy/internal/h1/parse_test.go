// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"
)

var requestSeeds = []string{
	"GET /a/b?c=d HTTP/1.1\r\nHost: a.example.com\r\nUser-Agent: x\r\nAccept: */*\r\n\r\nGET / HTTP/1.1",
	"POST //a/%2e%2e/b;c HTTP/1.1\r\nHost: a:80\r\nContent-Length: 4\r\nCookie: a=b\r\nCookie: c\r\n\r\nfinePOST",
	"HEAD / HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close, X-A\r\nx-a:\tb \r\nPragma: no-cache\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n",
	"OPTIONS /* HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nExpect: 100-continue\r\nTrailer: A\r\n\r\n",
	"DELETE /?a#b HTTP/1.0\r\nHost: a\r\nA:\r\n\r\n",
}

var (
	lengthField = regexp.MustCompile(`(?im)^content-length[ \t]*:`)
	codingField = regexp.MustCompile(`(?im)^transfer-encoding[ \t]*:`)
)

// compareRequest checks that ParseRequest returns the same request as net/http if it accepts a text.
func compareRequest(t *testing.T, text string) (isUsual bool) {
	t.Helper()
	header, rest, found := strings.Cut(text, "\r\n\r\n")
	if !found {
		return false
	}
	header += "\r\n\r\n"
	var ours http.Request
	isUsual, framing := ParseRequest(header, &ours)
	reader := bufio.NewReader(strings.NewReader(text))
	theirs, err := http.ReadRequest(reader)
	if err == nil && framing == FramingUnique && lengthField.MatchString(header) && codingField.MatchString(header) {
		t.Fatalf("%q: both framing fields were not detected", text)
	}
	if !isUsual {
		return false
	}
	if err != nil || !areValid(theirs) {
		t.Fatalf("%q: accepted, but not by net/http: %v", text, err)
	}
	length := int(ours.ContentLength)
	body, err := io.ReadAll(theirs.Body)
	if isWhole := length <= len(rest); isWhole != (err == nil) || isWhole && string(body) != rest[:length] {
		t.Fatalf("%q: body of %d bytes; net/http %q, %v", text, length, body, err)
	}
	if left, _ := io.ReadAll(reader); length <= len(rest) && string(left) != rest[length:] {
		t.Fatalf("%q: net/http left %q after the request", text, left)
	}
	delete(theirs.Header, "Host")
	theirs.Body = nil
	if !reflect.DeepEqual(&ours, theirs) {
		t.Fatalf("%q:\nh1       %+v\nnet/http %+v", text, &ours, theirs)
	}
	return true
}

// areValid repeats the checks of net/http's server.
func areValid(r *http.Request) bool {
	for name, values := range r.Header {
		for _, value := range values {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return false
			}
		}
	}
	return r.Host != "" && httpguts.ValidHostHeader(r.Host)
}

// TestMutatedRequests compares mutated requests with net/http.
func TestMutatedRequests(t *testing.T) {
	random, usual := rand.New(rand.NewPCG(1, 2)), 0
	for range 100_000 {
		if compareRequest(t, mutate(requestSeeds[random.IntN(len(requestSeeds))], random)) {
			usual++
		}
	}
	if usual < 10_000 {
		t.Errorf("only %d requests were accepted", usual)
	}
}

func FuzzRequest(f *testing.F) {
	for _, seed := range requestSeeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) { compareRequest(t, text) })
}

func TestParseRequest(t *testing.T) {
	const begin = "GET / HTTP/1.1\r\nHost: a\r\n"
	for text, want := range map[string]struct {
		isUsual bool
		framing Framing
	}{
		begin:                              {true, FramingUnique},
		begin + "A: b\x80\tc\r\nA:\r\n":    {true, FramingUnique},
		begin + "Content-Length: 0004\r\n": {true, FramingUnique},
		begin + "Content-Length: +4\r\n":   {false, FramingUnique},
		begin + "Content-Length: 4\r\nContent-Length: 4\r\n":      {false, FramingUnique},
		begin + "Content-Length: 9223372036854775808\r\n":         {false, FramingUnique},
		begin + "Host: a\r\n":                                     {false, FramingUnique},
		begin + "Expect: 100-continue\r\n":                        {false, FramingUnique},
		begin + "Upgrade: websocket\r\n":                          {false, FramingUnique},
		begin + "Trailer: A\r\n":                                  {false, FramingUnique},
		begin + "transfer-encoding: chunked\r\n":                  {false, FramingUnique},
		begin + "transfer-encoding:\r\ncontent-length:\r\n":       {false, FramingConflict},
		"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n":        {false, FramingConflict},
		begin + "A : b\r\n":                                       {false, FramingUnknown},
		begin + "A: b\r\n c\r\n":                                  {false, FramingUnknown},
		begin + "A: b\nC: d\r\n":                                  {false, FramingUnknown},
		begin + "A\r\n":                                           {false, FramingUnknown},
		begin + ": a\r\n":                                         {false, FramingUnknown},
		begin + "A: \x00\r\n":                                     {false, FramingUnknown},
		"GET / HTTP/1.1\r\n":                                      {false, FramingUnique},
		"GET / HTTP/1.1\r\nHost:\r\n":                             {false, FramingUnique},
		"GET / HTTP/1.1\r\nHost: a/b\r\n":                         {false, FramingUnique},
		"GET /  HTTP/1.1\r\nHost: a\r\n":                          {false, FramingUnique},
		"GET /\t HTTP/1.1\r\nHost: a\r\n":                         {false, FramingUnique},
		"GET /%zz HTTP/1.1\r\nHost: a\r\n":                        {false, FramingUnique},
		"GET http://a/ HTTP/1.1\r\nHost: a\r\n":                   {false, FramingUnique},
		"GET * HTTP/1.1\r\nHost: a\r\n":                           {false, FramingUnique},
		"get / HTTP/1.1\r\nHost: a\r\n":                           {false, FramingUnique},
		"PURGE / HTTP/1.1\r\nHost: a\r\n":                         {false, FramingUnique},
		"GET / HTTP/1.0\r\nHost: a\r\n":                           {false, FramingUnique},
		"GET / HTTP/2.0\r\nHost: a\r\n":                           {false, FramingUnique},
		"GET / HTTP/1.1 \r\nHost: a\r\n":                          {false, FramingUnique},
		"PRI * HTTP/2.0\r\n":                                      {false, FramingUnique},
		"GET / HTTP/1.1\r\nHost: a\r\nX-\u212a: b\r\n":            {false, FramingUnknown},
		"GET /\u00e9?\u00e9 HTTP/1.1\r\nHost: a\r\n":              {true, FramingUnique},
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: clo\u017fe\r\n": {true, FramingUnique},
	} {
		isUsual, framing := ParseRequest(text+"\r\n", new(http.Request))
		if isUsual != want.isUsual || framing != want.framing {
			t.Errorf("%q: %v, framing %d; want %v, %d", text, isUsual, framing, want.isUsual, want.framing)
		}
		compareRequest(t, text+"\r\n")
	}
}
