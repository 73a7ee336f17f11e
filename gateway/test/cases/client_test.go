// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

type client struct {
	proxies *proxies
	cookies []*http.Cookie
}

type answer struct {
	*http.Response
	body        string
	certificate []string
	err         error
}

func (c *client) check(t *testing.T, number int, of check) {
	t.Helper()
	name := of.Name
	if name == "" {
		name = of.Request
	}
	got, err := c.send(of)
	if err != nil {
		t.Fatalf("step %d: %s: %v", number, name, err)
	}
	for _, wanted := range of.Want {
		met, err := got.satisfies(wanted)
		if err != nil {
			t.Fatalf("step %d: %s: %v", number, name, err)
		}
		if !met {
			t.Errorf("step %d: %s: want %q, got %s", number, name, wanted, got)
		}
	}
}

func (a *answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprintf("%s %v, certificate for %v, body %q", a.Status, a.Header, a.certificate, a.body)
}

// satisfies reports whether an expectation is met:
//
//	refused                the connection, the handshake or the request fails
//	status NUMBER          the status of the response
//	backend NAME           the Service that has answered; or "not-backend NAME"
//	header NAME EXPRESSION a header field of the response matches; or "no-header NAME"
//	got EXPRESSION         the request that the backend has received matches; or "not-got EXPRESSION"
//	certificate NAME       the certificate has the name; or "not-certificate NAME"
func (a *answer) satisfies(wanted string) (bool, error) {
	verb, value, _ := strings.Cut(wanted, " ")
	if positive, negated := strings.CutPrefix(verb, "no-"); negated {
		return !a.hasHeader(value, ""), noVerb(positive, "header")
	}
	positive, negated := strings.CutPrefix(verb, "not-")
	met := false
	switch positive {
	case "refused":
		met = a.err != nil
	case "status":
		met = a.err == nil && strconv.Itoa(a.StatusCode) == value
	case "backend":
		met = a.hasHeader("X-Backend", "^"+regexp.QuoteMeta(value)+"$")
	case "header":
		name, expression, _ := strings.Cut(value, " ")
		met = a.hasHeader(name, expression)
	case "got":
		met = a.err == nil && regexp.MustCompile("(?m)"+value).MatchString(a.body)
	case "certificate":
		met = slices.Contains(a.certificate, value)
	default:
		return false, noVerb(positive, "")
	}
	return met != negated, nil
}

func noVerb(got, want string) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("unknown expectation %q", got)
}

func (a *answer) hasHeader(name, expression string) bool {
	return a.err == nil && slices.ContainsFunc(a.Header.Values(name), regexp.MustCompile(expression).MatchString)
}

// send sends a request over a new connection. The error is caused by the case, not by the connection.
func (c *client) send(of check) (*answer, error) {
	method, address, isComplete := strings.Cut(of.Request, " ")
	at, err := url.Parse(address)
	if err != nil || !isComplete {
		return nil, fmt.Errorf("invalid request %q, want METHOD URL: %w", of.Request, err)
	}
	number := uint64(80)
	if at.Scheme == "https" {
		number = 443
	}
	if at.Port() != "" {
		if number, err = strconv.ParseUint(at.Port(), 10, 16); err != nil {
			return nil, err
		}
	}
	local, err := c.proxies.address(of.Proxy, uint32(number))
	if err != nil {
		return nil, err
	}
	target, name, body, head := at.RequestURI(), at.Hostname(), "", "Host: "+at.Host+"\r\nConnection: close\r\n"
	if of.Keep {
		for _, cookie := range c.cookies {
			head += "Cookie: " + cookie.Name + "=" + cookie.Value + "\r\n"
		}
	}
	for _, field := range of.With {
		switch key, value, _ := strings.Cut(field, ": "); key {
		case "RawPath":
			target = value
		case "SNI":
			name = value
		case "Body":
			body = value
			head += fmt.Sprintf("Content-Length: %d\r\n", len(body))
		default:
			head += field + "\r\n"
		}
	}
	got := &answer{}
	got.err = got.exchange(local, at.Scheme == "https", name, method, method+" "+target+" HTTP/1.1\r\n"+head+"\r\n"+body)
	if got.err == nil {
		c.cookies = append(c.cookies, got.Cookies()...)
	}
	return got, nil
}

func (a *answer) exchange(address string, encrypted bool, name, method, text string) error {
	conn, err := net.DialTimeout("tcp", address, 20*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if encrypted {
		// The test reads the names of the certificate instead.
		secure := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err := secure.Handshake(); err != nil {
			return err
		}
		a.certificate = secure.ConnectionState().PeerCertificates[0].DNSNames
		conn = secure
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	if a.Response, err = http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method}); err != nil {
		return err
	}
	defer a.Body.Close()
	read, err := io.ReadAll(a.Body)
	a.body = string(read)
	return err
}
