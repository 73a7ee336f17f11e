// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// cors implements the CORS protocol (Fetch, section 3.2).
type cors struct {
	*resource.CORS
	methods, headers, expose string
}

func newCORS(r *resource.CORS) *cors {
	expose := r.GetExposeHeaders()
	if r.GetAllowCredentials() {
		// With credentials "*" is not a wildcard, but a literal header name.
		expose = slices.DeleteFunc(slices.Clone(expose), func(name string) bool { return name == "*" })
	}
	return &cors{
		CORS:    r,
		methods: strings.Join(r.GetAllowMethods(), ", "),
		headers: strings.Join(r.GetAllowHeaders(), ", "),
		expose:  strings.Join(expose, ", "),
	}
}

// allows accepts "*", a name, or a name whose "*" stands for one label, or several unless the filter is
// restricted.
func (c *cors) allows(origin string) bool {
	for _, allowed := range c.GetAllowOrigins() {
		if allowed == "*" || strings.EqualFold(allowed, origin) {
			return true
		}
		before, after, wild := strings.Cut(strings.ToLower(allowed), "*")
		if !wild {
			continue
		}
		rest, ok := strings.CutPrefix(strings.ToLower(origin), before)
		label, ok2 := strings.CutSuffix(rest, after)
		if ok && ok2 && label != "" && !strings.ContainsAny(label, "/:@") && (!c.GetOneLabel() || !strings.Contains(label, ".")) {
			return true
		}
	}
	return false
}

func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" &&
		r.Header.Get("Access-Control-Request-Method") != ""
}

func (c *cors) setHeaders(r *http.Request, header http.Header) {
	if !c.decorate(r, header) {
		return
	}
	set := func(name, configured string, list []string, method string) {
		value := configured
		if slices.Contains(list, "*") {
			value = "*"
			// With credentials "*" is not a wildcard.
			if c.GetAllowCredentials() {
				value = method
			}
		}
		if value != "" {
			header.Set(name, value)
		}
	}
	set("Access-Control-Allow-Methods", c.methods, c.GetAllowMethods(), r.Header.Get("Access-Control-Request-Method"))
	set("Access-Control-Allow-Headers", c.headers, c.GetAllowHeaders(), r.Header.Get("Access-Control-Request-Headers"))
	if c.GetMaxAgeSeconds() > 0 {
		header.Set("Access-Control-Max-Age", strconv.Itoa(int(c.GetMaxAgeSeconds())))
	}
}

// decorate replaces the backend's CORS headers and reports whether the origin is allowed.
func (c *cors) decorate(r *http.Request, header http.Header) bool {
	for _, name := range []string{
		"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Access-Control-Allow-Methods",
		"Access-Control-Allow-Headers", "Access-Control-Expose-Headers", "Access-Control-Max-Age",
	} {
		header.Del(name)
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	header.Add("Vary", "Origin")
	if !c.allows(origin) {
		return false
	}
	if slices.Contains(c.GetAllowOrigins(), "*") && !c.GetAllowCredentials() {
		origin = "*"
	}
	header.Set("Access-Control-Allow-Origin", origin)
	if c.GetAllowCredentials() {
		header.Set("Access-Control-Allow-Credentials", "true")
	}
	if c.expose != "" {
		header.Set("Access-Control-Expose-Headers", c.expose)
	}
	return true
}
