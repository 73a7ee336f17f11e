// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Defaults of cors-allow-methods, cors-allow-headers and cors-max-age (in seconds).
const (
	corsMethods = "GET, PUT, POST, DELETE, PATCH, OPTIONS"
	corsHeaders = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization"
	corsMaxAge  = 1728000
)

func (r *reader) enableCORS(text string) error {
	enabled, err := parseBool(text)
	if err != nil || !enabled {
		return err
	}
	cors := &CORS{
		Origins:     r.origins(),
		Methods:     r.tokens("cors-allow-methods", corsMethods),
		Headers:     r.tokens("cors-allow-headers", corsHeaders),
		Expose:      r.tokens("cors-expose-headers", ""),
		Credentials: r.isTrue("cors-allow-credentials", true),
		MaxAge:      r.number("cors-max-age", 0, 1<<31, corsMaxAge),
	}
	if slices.Contains(cors.Origins, "*") {
		// With all origins allowed, the response contains "*", which browsers reject for requests with
		// credentials.
		cors.Credentials = false
	}
	r.settings.CORS = cors
	return nil
}

var origin = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://(\*\.)?[A-Za-z0-9._\[\]:-]+$`)

func (r *reader) origins() []string {
	text, found := r.values["cors-allow-origin"]
	if !found {
		return []string{"*"}
	}
	var all []string
	for _, each := range splitList(text) {
		if each != "*" && each != "null" && !origin.MatchString(each) {
			r.reportInvalid("cors-allow-origin", fmt.Errorf("%s is not an origin and is ignored", quoted(each)))
			continue
		}
		all = append(all, each)
	}
	return all
}

func (r *reader) tokens(name, otherwise string) []string {
	text, found := r.values[name]
	if !found {
		text = otherwise
	}
	var all []string
	for _, each := range splitList(text) {
		if !isToken(each) {
			r.reportInvalid(name, fmt.Errorf("%s is not a token and is ignored", quoted(each)))
			continue
		}
		all = append(all, each)
	}
	return all
}

// maxSession is the maximum session lifetime in seconds, ten years.
const maxSession = 10 * 365 * 24 * 60 * 60

func (r *reader) affinity(text string) error {
	if text != "cookie" {
		return fmt.Errorf("%s is not supported, only cookie", quoted(text))
	}
	session := &Session{Cookie: "INGRESSCOOKIE"}
	if name, found := r.values["session-cookie-name"]; found {
		if isToken(name) {
			session.Cookie = name
		} else {
			r.reportInvalid("session-cookie-name", fmt.Errorf("%s is not the name of a cookie: %s is used", quoted(name), session.Cookie))
		}
	}
	if path, found := r.values["session-cookie-path"]; found {
		if strings.HasPrefix(path, "/") && isPrintable(path) && !strings.ContainsAny(path, ";,\" ") {
			session.Path = path
		} else {
			r.reportInvalid("session-cookie-path", fmt.Errorf("%s is not a path: the path of the rule is used", quoted(path)))
		}
	}
	seconds := r.number("session-cookie-expires", 0, maxSession, 0)
	if age := r.number("session-cookie-max-age", 0, maxSession, 0); age > 0 {
		seconds = age
	}
	session.MaxAge = time.Duration(seconds) * time.Second
	r.settings.Session = session
	return nil
}

func (r *reader) sameSite(text string) error {
	if _, is := r.values["affinity"]; is && !strings.EqualFold(text, "lax") {
		r.reportUnsupported("it is not supported: the cookie has SameSite=Lax")
	}
	return nil
}

func (r *reader) canaryBehavior(text string) error {
	if text != "sticky" {
		r.reportUnsupported("it is not supported: a session stays with its backend")
	}
	return nil
}

func (r *reader) canary(text string) error {
	enabled, err := parseBool(text)
	if err != nil || !enabled {
		return err
	}
	canary := &Canary{
		Header: r.values["canary-by-header"], Value: r.values["canary-by-header-value"], Pattern: r.values["canary-by-header-pattern"],
		Cookie: r.values["canary-by-cookie"], Total: r.number("canary-weight-total", 1, 1_000_000, 100),
	}
	canary.Weight = r.number("canary-weight", 0, canary.Total, 0)
	if canary.Header != "" && !isToken(canary.Header) {
		r.reportInvalid("canary-by-header", fmt.Errorf("%s is not the name of a header", quoted(canary.Header)))
		canary.Header = ""
	}
	if canary.Cookie != "" && !isToken(canary.Cookie) {
		r.reportInvalid("canary-by-cookie", fmt.Errorf("%s is not the name of a cookie", quoted(canary.Cookie)))
		canary.Cookie = ""
	}
	if canary.Value != "" {
		canary.Pattern = ""
	}
	if _, err := syntax.Parse(canary.Pattern, syntax.Perl); err != nil {
		r.reportInvalid("canary-by-header-pattern", errors.New("it is not an RE2 expression and matches no request"))
		canary.Header, canary.Pattern = "", ""
	}
	r.settings.Canary = canary
	return nil
}

// mirrorTarget parses mirror-target: http://NAME.NAMESPACE.svc…:PORT, with or without $request_uri.
func (r *reader) mirrorTarget(text string) error {
	site := strings.TrimSuffix(strings.TrimSuffix(text, "$request_uri"), "/")
	target, err := url.Parse(site)
	if err != nil || target.Host == "" || strings.Contains(site, "$") {
		return fmt.Errorf("%s is not a URL", quoted(text))
	}
	labels := strings.Split(target.Hostname(), ".")
	if target.Scheme != "http" || target.Path != "" || target.RawQuery != "" || len(labels) < 2 || len(labels) > 2 && labels[2] != "svc" {
		r.reportUnsupported("it is not supported: the target must be a Service, as http://NAME.NAMESPACE.svc:PORT$request_uri")
		return nil
	}
	port := uint64(80)
	if text := target.Port(); text != "" {
		if port, err = strconv.ParseUint(text, 10, 16); err != nil {
			return fmt.Errorf("%s has an invalid port", quoted(text))
		}
	}
	r.settings.Mirror = &Mirror{Namespace: labels[1], Service: labels[0], Port: int32(port)}
	return nil
}

// maxAttempts limits the attempts of one request. HTTPRoutes have the same limit.
const maxAttempts = 10

// nextUpstream parses proxy-next-upstream and proxy-next-upstream-tries; either enables retries.
func (r *reader) nextUpstream(string) error {
	if r.settings.Retry != nil {
		return nil
	}
	tries := r.number("proxy-next-upstream-tries", 0, 1<<31, 3)
	retry := &Retry{Attempts: min(tries-1, maxAttempts)}
	if tries == 0 {
		retry.Attempts = maxAttempts
	}
	r.settings.Retry = retry
	for _, word := range strings.Fields(r.values["proxy-next-upstream"]) {
		switch word {
		case "error", "timeout":
		case "off":
			retry.Attempts = 0
		case "http_403", "http_404", "http_429", "http_500", "http_502", "http_503", "http_504":
			status, err := parseNumber(strings.TrimPrefix(word, "http_"), 400, 599)
			if err != nil {
				return err
			}
			retry.Statuses = append(retry.Statuses, status)
		default:
			r.name = "proxy-next-upstream"
			r.reportUnsupported("%s is not supported", quoted(word))
		}
	}
	return nil
}
