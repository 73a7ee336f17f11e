// SPDX-License-Identifier: Apache-2.0

package rewrite

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/canonical"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/resource"
)

func compiled(t testing.TB, pattern, substitution string) *Expression {
	t.Helper()
	e, err := New(&resource.ExpressionChange{Pattern: pattern, Substitution: substitution})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestApply(t *testing.T) {
	for _, test := range []struct{ pattern, substitution, path, query, want string }{
		{`^/something(/|$)(.*)`, "/$2", "/something", "", "/"},
		{`^/something(/|$)(.*)`, "/$2", "/something/", "", "/"},
		{`^/something(/|$)(.*)`, "/$2", "/something/new", "a=b", "/new?a=b"},
		{`^/something(/|$)(.*)`, "/$2", "/else", "a=b", "/else?a=b"},
		{`(?i)^/Something(/|$)(.*)`, "/$2", "/someTHING/x", "", "/x"},
		// The substitution replaces the whole path.
		{`/b`, "/x", "/a/b/c", "", "/x"},
		{`^/(a)(b)?(c)`, "/$3$2$1$9", "/ac", "", "/ca"},
		{`^/a(.*)$`, "$1", "/ab", "", "/b"},
		{`^/a(.*)$`, "/$1", "/a//host/x", "", "/host/x"},
		{`^/a(.*)$`, "/x/$1", "/a//host", "", "/x///host"},
		// Client data must neither start nor end the query.
		{`^/a/(.*)$`, "/$1", "/a/b?c#d%", "", "/b?c#d%"},
		{`^/user/(.*)$`, "/index.php?user=$1", "/user/a&b=c d?", "", "/index.php?user=a%26b%3Dc+d%3F"},
		{`^/a/(.*)`, "/$1", "/a/b\nc", "", "/b\nc"},
		{`^/user/(.*)$`, "/index.php?user=$1", "/user/a", "x=y", "/index.php?user=a&x=y"},
		{`^/user`, "/index?", "/user", "x=y", "/index?x=y"},
		{`^/user`, "/index?x?y", "/user", "", "/index?x?y"},
	} {
		path, query, err := compiled(t, test.pattern, test.substitution).Apply(test.path, test.query)
		if query != "" {
			path += "?" + query
		}
		if err != nil || path != test.want {
			t.Errorf("%s to %s of %s?%s: %q, %v; want %q", test.pattern, test.substitution, test.path, test.query, path, err, test.want)
		}
	}
}

func TestNoPaths(t *testing.T) {
	static := compiled(t, `^/static(.*)`, "/files/$1")
	for _, path := range []string{
		"/static../secret", "/static..", "/static.", "/static./x", "/static..;x/secret", `/static..\secret`, `/staticx\..\secret`,
	} {
		if got, _, err := static.Apply(path, ""); !errors.Is(err, ErrPath) {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for _, path := range []string{"/static...", "/static/.well-known", "/static/a..b", "/static/..a"} {
		if _, _, err := static.Apply(path, ""); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	repeated := compiled(t, `^(.*)`, "$1"+strings.Repeat("$1", 20))
	if _, _, err := repeated.Apply("/"+strings.Repeat("x", 10_000), ""); !errors.Is(err, ErrPath) {
		t.Errorf("result of 210,000 bytes: %v", err)
	}
	asQuery := compiled(t, `^(.*)`, "/?"+strings.Repeat("$1", 20))
	if _, _, err := asQuery.Apply("/"+strings.Repeat("x", 10_000), ""); !errors.Is(err, ErrPath) {
		t.Errorf("query of 200,000 bytes: %v", err)
	}
	// The query of the client is not limited.
	long := strings.Repeat("x", maxLength)
	if _, _, err := compiled(t, `^/a`, "/").Apply("/a", long); err != nil {
		t.Errorf("long query: %v", err)
	}
}

func TestUnreadable(t *testing.T) {
	for _, test := range [][2]string{
		{`(`, "/"}, {`a)(b`, "/"}, {`(?=a)`, "/"}, {`a`, ""}, {`a`, "x"}, {`a`, "http://a.example/"}, {`a`, "/$0"}, {`a`, "/$"},
		{`a`, "/$uri"}, {`a`, "/${1}"}, {`a`, "/?$uri"}, {`a`, "/#a"}, {`a`, "/a b"}, {`a`, "/\r\nX:y"}, {`a`, "?a"},
	} {
		if _, err := New(&resource.ExpressionChange{Pattern: test[0], Substitution: test[1]}); err == nil {
			t.Errorf("no error for %s to %q", test[0], test[1])
		}
	}
}

// TestBounded checks that neither long paths nor large expressions take long.
func TestBounded(t *testing.T) {
	path := "/" + strings.Repeat("a", 60_000)
	for _, pattern := range []string{`^/(a*)*(a*)*(a*)*b`, `(a?){300}$`, `(.*)(.*)(.*)(.*)(.*)$`, `([a-z]{1,40}){20}b`} {
		begun := time.Now()
		_, _, err := compiled(t, pattern, "/$1").Apply(path, "")
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("%s took %v, %v", pattern, took, err)
		}
	}
	if _, _, err := compiled(t, `(a?){300}$`, "/$1").Apply(path, ""); !errors.Is(err, ErrTooExpensive) {
		t.Errorf("300 times 60,000 steps: %v", err)
	}
}

// FuzzApply checks that an accepted path is rewritten to an acceptable path.
func FuzzApply(f *testing.F) {
	for _, seed := range [][3]string{
		{`^/a(/|$)(.*)`, "/$2", "/a/b?c"}, {`(.*)`, "$1", "//a"}, {`a(.*)`, "/x$1?y=$1", "/a../%2e%2e/b"}, {`.(.)(.)`, "/$2$1$1", "/%2f./."},
		{`^/static(.*)`, "/files/$1", "/static../secret"}, {`(.)(.)(.)`, "/$3$2?$1", "/;..%5c"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, pattern, substitution, target string) {
		e, err := New(&resource.ExpressionChange{Pattern: pattern, Substitution: substitution})
		if err != nil || e.size > 100 {
			return
		}
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.URL, request.RequestURI = u, target
		if canonical.Request(request) != 0 {
			return
		}
		path, query, err := e.Apply(match.Path(u.Path), u.RawQuery)
		if err != nil {
			return
		}
		if match.Path(path) != path {
			t.Fatalf("%q is not canonical", path)
		}
		again := (&url.URL{Path: path, RawQuery: query}).RequestURI()
		read, err := url.ParseRequestURI(again)
		if err != nil || read.Path != path || read.RawQuery != query || e.pattern.MatchString(match.Path(u.Path)) && strings.HasPrefix(again, "//") {
			t.Fatalf("%q parsed as %v, %v; want %q and %q", again, read, err, path, query)
		}
		next := httptest.NewRequest(http.MethodGet, "/", nil)
		next.URL, next.RequestURI = read, again
		if status := canonical.Request(next); status != 0 {
			t.Fatalf("%q was rejected with status %d", again, status)
		}
	})
}
