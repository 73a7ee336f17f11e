// SPDX-License-Identifier: Apache-2.0

package extauth

import (
	"net/http"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func made(t *testing.T, of *resource.ExternalAuthorization) *Filter {
	t.Helper()
	of.Backend, of.Path = "auth", "/auth"
	f, err := New(of)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDecide(t *testing.T) {
	plain, signing := made(t, &resource.ExternalAuthorization{}), made(t, &resource.ExternalAuthorization{SignIn: "/login"})
	strict := made(t, &resource.ExternalAuthorization{OnlyOk: true})
	for status := -1; status < 1000; status++ {
		class, want := status/100, map[*Filter]Verdict{plain: Failed, signing: Failed, strict: Denied}
		switch {
		case status < 200:
			want[strict] = Failed
		case status == 200:
			want = map[*Filter]Verdict{plain: Allowed, signing: Allowed, strict: Allowed}
		case class == 2:
			want[plain], want[signing] = Allowed, Allowed
		case status == 401:
			want[plain], want[signing] = Denied, SignIn
		case status == 403:
			want[plain], want[signing] = Denied, Denied
		}
		for f, verdict := range want {
			if got := f.Evaluate(status); got != verdict {
				t.Errorf("%d of %+v: %d; want %d", status, f, got, verdict)
			}
		}
	}
}

func TestTemplate(t *testing.T) {
	in, err := http.NewRequest(http.MethodGet, "http://a/b%2fc?d=e&f=g", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	of := &Request{In: in, Path: "/b/c", RawPath: "/b%2fc", Scheme: "https", Host: "a"}
	for text, want := range map[string]string{
		"":                             "",
		"/login":                       "/login",
		"$scheme://$host$request_uri":  "https://a/b%2fc?d=e&f=g",
		"/l?rd=$escaped_request_uri":   "/l?rd=%2Fb%252fc%3Fd%3De%26f%3Dg",
		"$host$host":                   "aa",
		"$hostname":                    "error",
		"$":                            "error",
		"$$host":                       "error",
		"$Host":                        "error",
		"/a b":                         "error",
		"/a\r\nSet-Cookie: x":          "error",
		strings.Repeat("a", 5000):      "error",
		"/$request_uri_":               "error",
		"$host.example.com:$scheme/$x": "error",
	} {
		got := "error"
		if template, err := newTemplate(text); err == nil {
			got = template.expand(of)
		}
		if got != want {
			t.Errorf("%.50q: %q; want %q", text, got, want)
		}
	}
}

// FuzzQuestion checks that clients cannot set trusted headers or change the target.
func FuzzQuestion(f *testing.F) {
	f.Add("/a/b", "x=y", "X-Original-Url", "/public")
	f.Add("//a", "", "Connection", "Authorization")
	filter, err := New(&resource.ExternalAuthorization{Backend: "auth", Path: "/auth", RequestHeaders: []string{"*"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path, query, name, value string) {
		in, err := http.NewRequest(http.MethodPut, "http://a/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		in.URL.Path, in.URL.RawQuery = "/"+path, query
		in.Header.Set(name, value)
		question := filter.NewRequest(&Request{In: in, Path: "/" + path, Scheme: "http", Host: "a", Client: "198.51.100.1", Chain: "198.51.100.1"})
		if question.URL.RequestURI() != "/auth" || question.Method != http.MethodGet || question.Header.Get("X-Original-Method") != http.MethodPut {
			t.Errorf("%s %s %v", question.Method, question.URL, question.Header)
		}
		for _, set := range []string{"X-Forwarded-For", "X-Real-Ip"} {
			if got := question.Header[set]; len(got) != 1 || got[0] != "198.51.100.1" {
				t.Errorf("%s: %q", set, got)
			}
		}
		if got := question.Header["X-Original-Url"]; len(got) != 1 || !strings.HasPrefix(got[0], "http://a/") {
			t.Errorf("X-Original-URL: %q", got)
		}
	})
}
