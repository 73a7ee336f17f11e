// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func password(users, realm string) *resource.Filter {
	return &resource.Filter{Kind: &resource.Filter_BasicAuthentication{
		BasicAuthentication: &resource.BasicAuthentication{Users: users, Realm: realm},
	}}
}

func usersFile(name string, lines ...string) *resource.Resource {
	return &resource.Resource{Name: name, Kind: &resource.Resource_Users{
		Users: &resource.Users{Htpasswd: []byte(strings.Join(lines, "\n"))},
	}}
}

func basic(name, password string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password))
}

// Hashes of "myPassword" from Apache's page "Password Formats".
const (
	hashSHA    = "{SHA}VBPuJHI7uixaa6LQGWx4s+5GKNE="
	hashMD5    = "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/"
	hashBcrypt = "$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC"
)

func TestBasicAuthentication(t *testing.T) {
	port := freePort(t)
	set := &resource.HeaderChange{Set: []*resource.Header{{Name: "Authorization", Value: "Bearer ours"}}}
	var log syncBuffer
	f := start(t, func(s *Settings) { s.AccessLog = slog.New(slog.NewJSONHandler(&log, nil)) }, all(
		one(httpListener("l", port, nil), routes("r", "l", nil,
			toward("/own", "a", password("u", "own"), &resource.Filter{Kind: &resource.Filter_RequestHeaders{RequestHeaders: set}}),
			toward("/moved", "a", password("u", "moved"), redirectTo(&resource.Redirect{Location: "https://a.example.com/"})),
			toward("/cors", "a", password("u", "cors"), &resource.Filter{Kind: &resource.Filter_Cors{Cors: &resource.CORS{AllowOrigins: []string{"*"}}}}),
			toward("/outside", "a", password("u", "outside"), addresses([]string{"198.51.100.0/24"}, nil)),
			toward("/long", "a", password("u", "long"), bodyLimit(1)),
			toward("/none", "a", password("empty", "none")),
			toward("/open", "a"),
			toward("/", "a", password("u", `a "realm" \ of ours`)),
		), usersFile("u", "sha:"+hashSHA, "md5:"+hashMD5, "bcrypt:"+hashBcrypt), usersFile("empty", "# nobody")),
		backend("a", serve(t, echo("a"))))...)
	for _, test := range []struct {
		path, header string
		status       int
	}{
		{"/", basic("sha", "myPassword"), 200}, {"/", basic("md5", "myPassword"), 200}, {"/", basic("bcrypt", "myPassword"), 200},
		{"/", basic("sha", "mypassword"), 401}, {"/", basic("sha", ""), 401}, {"/", basic("nobody", "myPassword"), 401},
		{"/", "", 401}, {"/", "Authorization: Bearer x", 401}, {"/", "Authorization: Basic %", 401},
		{"/x/../", "", 401}, {"/own", basic("sha", "myPassword"), 200}, {"/open", basic("sha", "wrong"), 200},
		{"/none", basic("sha", "myPassword"), 401}, {"/none", basic("", ""), 401},
		// In this order: addresses, redirect, password, body.
		{"/outside", basic("sha", "myPassword"), 403}, {"/moved", "", 302}, {"/long", "", 401}, {"/long", basic("sha", "myPassword"), 413},
	} {
		for protocol, c := range both(t, port) {
			var headers []string
			if test.header != "" {
				headers = append(headers, test.header)
			}
			got := send(t, c, http.MethodPost, "http://a.example.com"+test.path, "body", headers...)
			if got.StatusCode != test.status {
				t.Errorf("%s with %q over %s: %d; want %d", test.path, test.header, protocol, got.StatusCode, test.status)
			}
			challenge := got.Header.Get("WWW-Authenticate")
			if (test.status == 401) != (challenge != "") {
				t.Errorf("%s over %s: challenge %q", test.path, protocol, challenge)
			}
			if want := `Basic realm="a \"realm\" \\ of ours", charset="UTF-8"`; test.path == "/" && challenge != "" && challenge != want {
				t.Errorf("challenge %s; want %s", challenge, want)
			}
			sent := strings.Contains(got.body, "Authorization: ")
			if wantSent := test.path == "/open" || test.path == "/own"; test.status == 200 && sent != wantSent || strings.Contains(got.body, "Basic") != (test.path == "/open") {
				t.Errorf("%s over %s: the backend received\n%s", test.path, protocol, got.body)
			}
		}
	}
	// Browsers send preflights without a password.
	if got := send(t, client(t, port, nil), http.MethodOptions, "http://a.example.com/cors", "", "Origin: https://b", "Access-Control-Request-Method: GET"); got.StatusCode != 200 {
		t.Errorf("preflight: %d", got.StatusCode)
	}
	if got := get(t, client(t, port, nil), "http://a.example.com/cors", "Origin: https://b"); got.StatusCode != 401 || got.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("cross-origin request: %d %v", got.StatusCode, got.Header)
	}
	awaitMetric(t, f, `millrace_proxy_denied_total{reason="missing_credentials"} 11`)
	awaitMetric(t, f, `millrace_proxy_denied_total{reason="invalid_credentials"} 10`)
	text := log.take()
	if strings.Count(text, `"error":"unknown user or wrong password"`) != 10 {
		t.Errorf("denials are missing in the log:\n%s", text)
	}
	for _, secret := range []string{"myPassword", "mypassword", hashSHA[5:], "Basic ", basic("sha", "myPassword")[21:]} {
		if strings.Contains(text, secret) {
			t.Errorf("the log contains %q", secret)
		}
	}
}

// TestUsersChange checks that missing or invalid users reject all requests.
func TestUsersChange(t *testing.T) {
	port := freePort(t)
	group := func(filters ...*resource.Filter) *resource.Resource {
		return routes("g", "l", nil, of("ingress/two/i", "/two", "a"), of("ingress/one/i", "/", "a", filters...))
	}
	f := start(t, nil, all(one(httpListener("l", port, nil), group(password("u", "r")), usersFile("u", "a:"+hashSHA)),
		backend("a", serve(t, echo("a"))))...)
	c := client(t, port, nil)
	at := func(what string, want int, name string) {
		t.Helper()
		if got := get(t, c, "http://a.example.com/", basic(name, "myPassword")); got.StatusCode != want {
			t.Errorf("%s: status of %s = %d; want %d", what, name, got.StatusCode, want)
		}
	}
	at("the first file", 200, "a")
	f.change(usersFile("u", "b:"+hashMD5))
	at("another file", 401, "a")
	at("another file", 200, "b")
	f.change(usersFile("u", "b:"+hashMD5, "a:plain", "c:"+hashBcrypt))
	at("a line that cannot be read", 401, "a")
	at("other lines", 200, "c")
	if text := statusOf(f.Proxy); !strings.Contains(text, "line 2") || strings.Contains(text, "plain") {
		t.Errorf("reported error of the file = %q", text)
	}
	f.change(usersFile("u", "b:plain"))
	at("no line that can be read", 401, "b")
	f.change(usersFile("u", "b:"+hashMD5))
	at("the file again", 200, "b")
	if text := statusOf(f.Proxy); text != "" {
		t.Errorf("still rejected: %s", text)
	}
	f.versions++
	f.Apply(Update{Version: "gone", Removed: []string{"u"}})
	at("no file", 500, "b")
	if got := get(t, c, "http://a.example.com/two"); got.StatusCode != 200 {
		t.Errorf("other tenant: status %d", got.StatusCode)
	}
	f.change(usersFile("u", "b:"+hashMD5))
	at("the file at last", 200, "b")
	f.change(group())
	at("no password", 200, "a")
	f.change(group(password("missing", "r")))
	at("a password of users who are missing", 500, "a")
	f.change(group(password("u", "r"), unknown()))
	at("another fault", 500, "b")
	f.change(group(password("u", "r")))
	at("the password again", 200, "b")
	at("the password again", 401, "a")
}

// TestGuesses checks that password guessing delays neither other clients nor cached passwords.
func TestGuesses(t *testing.T) {
	port, trusting := freePort(t), freePort(t)
	trusted := httpListener("trusting", trusting, nil)
	trusted.GetListener().TrustedHops = 1
	hash, err := bcrypt.GenerateFromPassword([]byte("myPassword"), 10)
	if err != nil {
		t.Fatal(err)
	}
	rules := []*resource.Rule{toward("/open", "a"), toward("/", "a", password("u", "r"))}
	start(t, nil, all(one(trusted, httpListener("l", port, nil), routes("g", "l", nil, rules...), routes("gt", "trusting", nil, rules...),
		usersFile("u", "a:"+string(hash))), backend("a", serve(t, echo("a"))))...)
	user := client(t, trusting, nil)
	from := func(address string) string { return "X-Forwarded-For: " + address }
	if got := get(t, user, "http://a.example.com/", basic("a", "myPassword"), from("203.0.113.1")); got.StatusCode != 200 {
		t.Fatal(got.StatusCode)
	}
	var mutex sync.Mutex
	counts := map[int]int{}
	var guesses sync.WaitGroup
	guesser := client(t, port, nil)
	for i := range 60 {
		guesses.Go(func() {
			request, _ := http.NewRequest(http.MethodGet, "http://a.example.com/", nil)
			request.SetBasicAuth("a", fmt.Sprint("guess", i))
			response, err := guesser.Do(request)
			if err != nil {
				t.Error(err)
				return
			}
			_ = response.Body.Close()
			mutex.Lock()
			defer mutex.Unlock()
			counts[response.StatusCode]++
		})
	}
	guessed := make(chan struct{})
	go func() {
		guesses.Wait()
		close(guessed)
	}()
	for open := true; open; {
		select {
		case <-guessed:
			open = false
		default:
		}
		if got := get(t, user, "http://a.example.com/", basic("a", "myPassword"), from("203.0.113.1")); got.StatusCode != 200 {
			t.Fatalf("cached user: status %d", got.StatusCode)
		}
		if got := get(t, user, "http://a.example.com/open"); got.StatusCode != 200 {
			t.Fatalf("request without password: status %d", got.StatusCode)
		}
	}
	if counts[401] == 0 || counts[429] == 0 || counts[401]+counts[429] != 60 {
		t.Errorf("status codes of attempts = %v; want some 401 and some 429", counts)
	}
}
