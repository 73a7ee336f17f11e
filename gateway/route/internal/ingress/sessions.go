// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

type cookiePath struct {
	host ownership.Host
	name string
}

// setSessionPath sets the path of a session cookie to that of the rule. A suffix of the cookie's name
// distinguishes Services.
func (r *setCompiler) setSessionPath(
	rule *resource.Rule, ingress *networkingv1.Ingress, host ownership.Host, path ingressPath, service *networkingv1.IngressServiceBackend,
) {
	if rule.SessionPersistence == nil || service == nil {
		return
	}
	place := r.nginxSettings[ingress].Session.Path
	if place == "" && !r.expressions[host] {
		decoded, err := url.PathUnescape(path.value)
		if place = (&url.URL{Path: decoded}).EscapedPath(); err != nil || strings.Contains(place, ";") {
			place = ""
		}
	}
	at, own := cookiePath{host, rule.SessionPersistence.SessionName}, ingress.Namespace+"/"+service.Name
	if r.sessions[at] == "" {
		r.sessions[at] = own
	}
	suffix := ""
	if r.sessions[at] != own {
		suffix = own
	}
	rule.SessionPersistence = sessionOf(rule.SessionPersistence, place, suffix)
	if named := (cookiePath{host, rule.SessionPersistence.SessionName}); suffix != "" && r.sessions[named] == "" {
		r.sessions[named] = own
		r.annotation(ingress, "affinity", model.ReasonAnnotationIgnored, fmt.Sprintf(
			"the session cookie of Service %s at %s is named %s, because another Service of the host has %s", service.Name, host, named.name, at.name))
	}
}

// sessionOf returns a copy of a session with a path. Unless of is empty, the name has a suffix derived from
// of.
func sessionOf(session *resource.SessionPersistence, path, of string) *resource.SessionPersistence {
	name := session.SessionName
	if of != "" {
		digest := sha256.Sum256([]byte(of))
		name += "-" + hex.EncodeToString(digest[:4])
	}
	return &resource.SessionPersistence{
		Kind: session.Kind, SessionName: name, AbsoluteTimeout: session.AbsoluteTimeout, Permanent: session.Permanent, Path: path,
	}
}
