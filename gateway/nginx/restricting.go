// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

func (r *reader) allow(text string) error {
	found, err := parsePrefixes(text)
	// Both annotation names are aliases for the same list.
	r.settings.Allow = append(r.settings.Allow, found...)
	return err
}

func (r *reader) deny(text string) error {
	found, err := parsePrefixes(text)
	r.settings.Deny = found
	return err
}

// satisfy parses whether one of the restrictions suffices (any) or all are required (all). Without an
// allowlist all are required.
func (r *reader) satisfy(text string) error {
	isAllowing := r.values["whitelist-source-range"] != "" || r.values["allowlist-source-range"] != ""
	hasPassword, hasURL := !IsOff(r.values["auth-type"]), !IsOff(r.values["auth-url"])
	switch {
	case text != "all" && text != "any":
		return fmt.Errorf("%s is neither all nor any: all is used", quoted(text))
	case text == "any":
		r.settings.SatisfyAny = isAllowing
		if hasPassword && hasURL {
			r.reportUnsupported("it is supported in part: a client without an allowed address needs a password and the permission of auth-url")
		} else if !isAllowing && r.values["denylist-source-range"] != "" && (hasPassword || hasURL) {
			r.reportUnsupported("it is not supported: clients of denylist-source-range are rejected even with a password")
		}
	}
	return nil
}

func (r *reader) authType(text string) error {
	if text != "basic" {
		return fmt.Errorf("%s is not supported, only basic", quoted(text))
	}
	auth := &Auth{Secret: r.values["auth-secret"], Realm: r.values["auth-realm"]}
	if auth.Secret == "" {
		return errors.New("the annotation auth-secret is missing")
	}
	if auth.Realm == "" {
		auth.Realm = "Authentication Required"
	}
	if !isPrintable(auth.Realm) {
		r.reportInvalid("auth-realm", errors.New("it has control characters: the default is used"))
		auth.Realm = "Authentication Required"
	}
	switch kind := r.values["auth-secret-type"]; kind {
	case "", "auth-file":
	case "auth-map":
		auth.IsMap = true
	default:
		return fmt.Errorf("auth-secret-type %s is neither auth-file nor auth-map", quoted(kind))
	}
	r.settings.Auth = auth
	return nil
}

// authSecret validates auth-secret; authType reads it.
func (r *reader) authSecret(text string) error {
	if strings.Count(text, "/") > 1 {
		return fmt.Errorf("%s is not NAMESPACE/NAME", quoted(text))
	}
	return nil
}

func (r *reader) authTLS(string) error {
	if verify := r.values["auth-tls-verify-client"]; verify != "off" {
		r.refuse("it is not supported: %s", noteClientCert)
	}
	return nil
}

func (r *reader) limitRPS(text string) (err error) {
	r.settings.Limits.PerSecond, err = r.limit(text)
	return err
}

func (r *reader) limitRPM(text string) (err error) {
	r.settings.Limits.PerMinute, err = r.limit(text)
	return err
}

func (r *reader) limitConnections(text string) (err error) {
	r.settings.Limits.Connections, err = r.limit(text)
	return err
}

// limit parses a rate or connection limit; 0 means no limit.
func (r *reader) limit(text string) (uint32, error) {
	if r.settings.Limits.Burst == 0 {
		r.settings.Limits.Burst = r.number("limit-burst-multiplier", 1, 1000, 5)
	}
	return parseNumber(text, 0, math.MaxInt32)
}

func (r *reader) limitExempt(text string) (err error) {
	r.settings.Limits.Exempt, err = parsePrefixes(text)
	return err
}

func (r *reader) bodySize(text string) (err error) {
	r.settings.BodyLimit, err = parseSize(text)
	return err
}
