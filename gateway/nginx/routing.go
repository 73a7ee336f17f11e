// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

func (r *reader) sslRedirect(text string) (err error) {
	value, err := parseBool(text)
	if err == nil {
		r.settings.SSLRedirect = value
	}
	return err
}

func (r *reader) forceSSLRedirect(text string) (err error) {
	r.settings.ForceSSLRedirect, err = parseBool(text)
	return err
}

func (r *reader) fromToWWW(text string) (err error) {
	r.settings.FromToWWW, err = parseBool(text)
	return err
}

func (r *reader) useRegex(text string) (err error) {
	r.settings.UseRegex, err = parseBool(text)
	return err
}

func (r *reader) sslPassthrough(text string) (err error) {
	r.settings.SSLPassthrough, err = parseBool(text)
	return err
}

func (r *reader) appRoot(text string) error {
	if !strings.HasPrefix(text, "/") || strings.HasPrefix(text, "//") || text == "/" {
		return fmt.Errorf("%s is not a path below /", quoted(text))
	}
	if err := checkLocation(text); err != nil {
		return err
	}
	r.settings.AppRoot = text
	return nil
}

// checkLocation returns an error if a text is not a valid target of a redirect.
func checkLocation(text string) error {
	if strings.Contains(text, "$") {
		return fmt.Errorf("%s has an unknown variable", quoted(text))
	}
	if !isPrintable(text) || strings.ContainsAny(text, " \"\\") {
		return fmt.Errorf("%s is not a URL", quoted(text))
	}
	if _, err := url.Parse(text); err != nil {
		return fmt.Errorf("%s is not a URL", quoted(text))
	}
	return nil
}

func (r *reader) permanentRedirect(text string) error {
	if _, other := r.values["temporal-redirect"]; other {
		return nil
	}
	return r.redirect(text, r.redirectCode("permanent-redirect-code", 301))
}

func (r *reader) temporalRedirect(text string) error {
	return r.redirect(text, r.redirectCode("temporal-redirect-code", 302))
}

func (r *reader) redirectCode(name string, otherwise uint32) uint32 {
	switch found := r.number(name, 300, 308, otherwise); found {
	case 300, 304, 305, 306:
		r.reportInvalid(name, fmt.Errorf("%d is not the status of a redirect: %d is used", found, otherwise))
		return otherwise
	default:
		return found
	}
}

// redirect parses a redirect. The only supported variables are those that preserve parts of the request's
// URL.
func (r *reader) redirect(text string, status uint32) error {
	to := &Redirect{Status: status}
	site, keeps := strings.CutSuffix(text, "$request_uri")
	read := to.readLocation
	if keeps {
		read, text = to.readSite, strings.TrimSuffix(site, "/")
	}
	if err := read(text); err != nil {
		return err
	}
	r.settings.Redirect = to
	return nil
}

func (to *Redirect) readLocation(text string) error {
	target, err := url.Parse(text)
	if err != nil || target.Host == "" && !strings.HasPrefix(text, "/") || target.Scheme != "" && target.Scheme != "http" && target.Scheme != "https" {
		return fmt.Errorf("%s is not an http or https URL", quoted(text))
	}
	to.Location = text
	return checkLocation(text)
}

func (to *Redirect) readSite(text string) error {
	scheme, host, is := strings.Cut(text, "://")
	switch {
	case !is || scheme != "$scheme" && scheme != "http" && scheme != "https":
		return fmt.Errorf("%s is not an http or https URL", quoted(text))
	case scheme != "$scheme":
		to.Scheme = scheme
	}
	switch host {
	case "$host", "$http_host", "$server_name":
		return nil
	}
	target, err := url.Parse("http://" + host)
	if err != nil || target.Host != host || target.Hostname() == "" || strings.ContainsAny(host, "$@ ") {
		return fmt.Errorf("%s has an invalid host", quoted(text))
	}
	to.Host = target.Hostname()
	if port := target.Port(); port != "" {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 {
			return fmt.Errorf("%s has an invalid port", quoted(text))
		}
		to.Port = uint32(number)
	}
	return nil
}

func (r *reader) rewriteTarget(text string) error {
	if !strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "$") {
		return fmt.Errorf("%s does not begin with / or a group", quoted(text))
	}
	if !isPrintable(text) || strings.ContainsAny(text, " #\"\\") {
		return fmt.Errorf("%s is not a path", quoted(text))
	}
	for i := range len(text) {
		if text[i] == '$' && (i+1 == len(text) || text[i+1] < '1' || text[i+1] > '9') {
			return fmt.Errorf("%s has an unknown variable: groups are $1 to $9", quoted(text))
		}
	}
	r.settings.RewriteTarget = text
	return nil
}

// vhostVariables are the variables of upstream-vhost that depend on the rule of the Ingress.
var vhostVariables = []string{"$service_name", "$service_port", "$namespace", "$ingress_name"}

func (r *reader) upstreamVhost(text string) error {
	text = variable.ReplaceAllStringFunc(text, strings.NewReplacer("{", "", "}", "").Replace)
	switch text {
	case "$host", "$http_host", "$best_http_host":
		// Requests to backends have the client's host by default.
		return nil
	}
	r.settings.UpstreamVhost = text
	text = variable.ReplaceAllStringFunc(text, func(name string) string {
		if slices.Contains(vhostVariables, name) {
			return "1"
		}
		return name
	})
	if target, err := url.Parse("http://" + text); err != nil || target.Host != text || strings.ContainsAny(text, "$@ ") {
		return fmt.Errorf("%s is not a host name: only $service_name, $service_port, $namespace and $ingress_name, or $host alone, are replaced", quoted(text))
	}
	return nil
}

func (r *reader) forwardedPrefix(text string) error {
	if !isPrintable(text) || strings.Contains(text, "$") {
		return fmt.Errorf("%s is not the value of a header", quoted(text))
	}
	r.settings.ForwardedPrefix = text
	return nil
}

// maxAliases limits the number of aliases of an Ingress, because each alias repeats its rules.
const maxAliases = 100

func (r *reader) serverAlias(text string) error {
	for _, name := range splitList(text) {
		if strings.ContainsAny(name, "~^$()\\ ") {
			r.reportUnsupported("%s is a regular expression: list the names", quoted(name))
			continue
		}
		r.settings.Aliases = append(r.settings.Aliases, name)
	}
	if len(r.settings.Aliases) > maxAliases {
		r.settings.Aliases = nil
		return fmt.Errorf("there are more than %d names", maxAliases)
	}
	return nil
}

func (r *reader) backendProtocol(text string) error {
	protocol, is := map[string]Protocol{"HTTP": HTTP, "HTTPS": HTTPS, "GRPC": GRPC, "GRPCS": GRPCS}[strings.ToUpper(text)]
	if !is {
		return fmt.Errorf("%s is not supported, only HTTP, HTTPS, GRPC and GRPCS", quoted(text))
	}
	r.settings.Protocol = protocol
	return nil
}

func (r *reader) verifyBackend(text string) error {
	switch text {
	case "on":
		r.settings.VerifyBackend = true
	case "off":
	default:
		return fmt.Errorf("%s is neither on nor off", quoted(text))
	}
	return nil
}

func (r *reader) customHeaders(text string) error {
	if strings.Count(text, "/") > 1 {
		return errors.New("it is not NAMESPACE/NAME")
	}
	r.settings.CustomHeaders = text
	return nil
}

func (r *reader) readTimeout(text string) error {
	seconds, err := parseNumber(strings.TrimSuffix(text, "s"), 0, 1<<31)
	// Shorter timeouts than the default of responseTimeout affect only the time until a slow backend gets a
	// 504.
	if err != nil || seconds > 60 {
		r.reportUnsupported("it is not supported: the class's responseTimeout limits the wait for a response, 60s by default")
	}
	return nil
}
