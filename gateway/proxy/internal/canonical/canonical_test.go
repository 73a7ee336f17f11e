// SPDX-License-Identifier: Apache-2.0

package canonical

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestOneHost(t *testing.T) {
	for name, test := range map[string]struct {
		fields []string
		want   int
	}{
		"none":      {nil, 0},
		"equal":     {[]string{"Public.example.com"}, 0},
		"different": {[]string{"internal.example.com"}, http.StatusBadRequest},
		"a port":    {[]string{"public.example.com:80"}, http.StatusBadRequest},
		"second Host": {[]string{"public.example.com", "internal.example.com"},
			http.StatusBadRequest},
		"empty": {[]string{""}, http.StatusBadRequest},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://public.example.com/", nil)
		if test.fields != nil {
			r.Header["Host"] = test.fields
		}
		got := Request(r)
		if got != test.want || got == 0 && (r.Header["Host"] != nil || r.Host != "public.example.com") {
			t.Errorf("%s: status %d, host %q, fields %q; want status %d", name, got, r.Host, r.Header["Host"], test.want)
		}
	}
}

func TestTargeted(t *testing.T) {
	for target, want := range map[string]bool{
		"/": true, "/a//b": true, "/a/../b": true, "/a/%2e%2e/b": true, "/a;x/b": true, "/a%5cb": true, "/.;": false,
		"/a/..;/b": false, "/a/..;x/b": false, "/a/%2e%2e%3b/b": false, "/a/..%5cb": false, "/a/x%5c..%5cb": false,
		"/a.;x": true, "/...;/": true, "/?..;": true,
	} {
		r := httptest.NewRequest(http.MethodGet, target, nil)
		if got := isValidTarget(r); got != want {
			t.Errorf("%s: %v; want %v", target, got, want)
		}
	}
}

func TestMethod(t *testing.T) {
	for method, want := range map[string]int{
		"GET": 0, "M-SEARCH": 0, "PROPFIND": 0, "": 400, "GE T": 400, "GET/": 400, "G\tT": 400, "G\u00cbT": 400, "PRI": 400,
		"TRACE": 405, "CONNECT": 405,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Method = method
		if got := Request(r); got != want {
			t.Errorf("%q: %d; want %d", method, got, want)
		}
	}
}

func TestUpgrade(t *testing.T) {
	for name, test := range map[string]struct {
		major               int
		upgrade, connection string
		kept                bool
	}{
		"websocket":                   {1, "websocket", "keep-alive, Upgrade", true},
		"token missing in Connection": {1, "websocket", "keep-alive", false},
		"HTTP/2":                      {2, "websocket", "Upgrade", false},
		"h2c in a list":               {1, "websocket, h2c", "Upgrade", false},
		"TLS":                         {1, "TLS/1.0", "Upgrade", false},
		"empty":                       {1, "", "Upgrade", false},
		"other protocol":              {1, "spdy/3.1", "upgrade", true},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.ProtoMajor = test.major
		r.Header.Set("Upgrade", test.upgrade)
		r.Header.Set("Connection", test.connection)
		if status := Request(r); status != 0 || (r.Header["Upgrade"] != nil) != test.kept {
			t.Errorf("%s: %d, Upgrade %q", name, status, r.Header["Upgrade"])
		}
	}
}

// TestHTTPoxy checks that the header Proxy is removed, in lower case over HTTP/2, too.
func TestHTTPoxy(t *testing.T) {
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	request.Header.Add("proxy", "203.0.113.9:3128")
	request.Header.Add("PROXY", "203.0.113.10:3128")
	request.Header.Set("Proxy-Status", "kept")
	if status := Request(request); status != 0 {
		t.Fatalf("rejected with status %d", status)
	}
	if given := request.Header.Values("Proxy"); len(given) > 0 {
		t.Errorf("Proxy is %q, want none", given)
	}
	if request.Header.Get("Proxy-Status") == "" {
		t.Error("Proxy-Status was dropped")
	}
}
