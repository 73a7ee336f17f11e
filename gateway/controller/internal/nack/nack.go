// SPDX-License-Identifier: Apache-2.0

// Package nack reports configurations that proxies reject. Only the leader writes statuses, so each replica
// stores the rejections of its proxies in an annotation of their Deployment, which the leader reads.
package nack

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/gateway/distribution"
	"github.com/millrace-lb/millrace/gateway/distribution/server"
)

// Annotation is set on an owner's proxy Deployment to a rejected configuration, as JSON.
const Annotation = "millrace.io/refused-configuration"

const (
	maxMessage = 512
	maxParts   = 50
)

// Rejection is a proxy's rejection of a configuration. The zero value is no rejection.
type Rejection struct {
	// Proxy is the pod, "namespace/name".
	Proxy string `json:"proxy"`
	// Version is the first version rejected for this reason.
	Version string `json:"version"`
	// Message is why the whole version is rejected; empty if all but Parts is served.
	Message string `json:"message,omitempty"`
	// Parts are rejected resources, Total is their number before truncation.
	Parts []Part `json:"parts,omitempty"`
	Total int    `json:"total,omitempty"`
}

// Part is a rejected resource, or one object's rules in it.
type Part struct {
	Resource string `json:"resource"`
	// Route is the object, "httproute/namespace/name"; empty means the whole resource.
	Route  string `json:"route,omitempty"`
	Reason string `json:"reason"`
	// Retained reports whether the previous configuration of the resource is still served.
	Retained bool `json:"retained,omitempty"`
}

// IsZero reports whether nothing is rejected.
func (r Rejection) IsZero() bool { return r.Message == "" && len(r.Parts) == 0 }

// IsWhole reports whether the proxy serves a previous version.
func (r Rejection) IsWhole() bool { return r.Message != "" }

func (r Rejection) equalExceptVersion(other Rejection) bool {
	return r.Proxy == other.Proxy && r.Message == other.Message && r.Total == other.Total && slices.Equal(r.Parts, other.Parts)
}

func fromProxy(proxy server.Proxy) Rejection {
	if proxy.Refusal != "" {
		return Rejection{Proxy: proxy.Pod, Version: proxy.Sent, Message: shorten(proxy.Refusal, maxMessage)}
	}
	if proxy.Refused == nil {
		return Rejection{}
	}
	found := Rejection{Proxy: proxy.Pod, Version: proxy.Sent, Total: int(proxy.Refused.GetTotal())}
	said := proxy.Refused.GetRefusals()
	for _, each := range said[:min(len(said), maxParts)] {
		found.Parts = append(found.Parts, Part{
			Resource: each.GetResource(), Route: each.GetRoute(), Reason: shorten(each.GetReason(), maxMessage/2), Retained: each.GetRetained(),
		})
	}
	return found
}

// Read parses the annotation of a Deployment.
func Read(deployment client.Object) Rejection {
	var found Rejection
	if err := json.Unmarshal([]byte(deployment.GetAnnotations()[Annotation]), &found); err != nil {
		// No annotation, or not written by us.
		return Rejection{}
	}
	return found
}

// Text formats the rejection for statuses and events.
func (r Rejection) Text() string {
	if r.IsWhole() {
		return "proxy " + r.Proxy + " rejects the configuration and serves the previous one: " + r.Message
	}
	texts := make([]string, 0, len(r.Parts))
	for _, part := range r.Parts {
		texts = append(texts, part.Reason)
	}
	return fmt.Sprintf("proxy %s rejects %d resources and serves all others: %s", r.Proxy, r.Total, strings.Join(texts, "; "))
}

// TextOf formats the rejection of a part.
func (r Rejection) TextOf(part Part) string {
	if part.Retained {
		return "proxy " + r.Proxy + " rejects it and serves its previous version: " + part.Reason
	}
	return "proxy " + r.Proxy + " rejects it: " + part.Reason
}

// decide computes a Deployment's annotation. Of other replicas' proxies only the existence of the pod is known.
func decide(written Rejection, proxies []server.Proxy, podExists func(pod string) bool) Rejection {
	var own Rejection
	for _, proxy := range slices.SortedFunc(slices.Values(proxies), func(a, b server.Proxy) int { return cmp.Compare(a.Pod, b.Pod) }) {
		// A proxy that serves a previous version takes precedence.
		if said := fromProxy(proxy); own.IsZero() || said.IsWhole() && !own.IsWhole() {
			own = said
		}
	}
	switch {
	case written.IsZero():
		return own
	case own.equalExceptVersion(written):
		// Do not rewrite the annotation for each version.
		return written
	case slices.ContainsFunc(proxies, func(p server.Proxy) bool { return hasNewerAcknowledgement(p, written) }), !podExists(written.Proxy):
		return own
	}
	return written
}

// hasNewerAcknowledgement excludes a connection that is still open here after the proxy moved to another
// replica.
func hasNewerAcknowledgement(proxy server.Proxy, written Rejection) bool {
	answered := proxy.Acknowledged
	if proxy.Refusal != "" {
		answered = proxy.Sent
	}
	return proxy.Pod == written.Proxy && answered != "" &&
		distribution.Order(answered) >= distribution.Order(written.Version)
}

func shorten(message string, most int) string {
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most-4], "") + " ..."
}
