// SPDX-License-Identifier: Apache-2.0

// Package nack reports configurations that proxies reject. A proxy sends the rejection only to the
// replica that it is connected to, but only the leader writes statuses. Therefore each replica stores the
// rejections of its proxies in an annotation of their Deployment, which the leader reads.
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
	// maxMessage is the maximum length in bytes of a stored message, which comes from a proxy.
	maxMessage = 512
	// maxParts is the maximum number of stored resources.
	maxParts = 50
)

// Refusal describes the rejection of a configuration by a proxy. The zero value is no rejection.
type Refusal struct {
	// Proxy is the pod, "namespace/name".
	Proxy string `json:"proxy"`
	// Version is the first version rejected for this reason.
	Version string `json:"version"`
	// Message is the reason if the whole version is rejected; empty if everything except Parts is served.
	Message string `json:"message,omitempty"`
	// Parts are rejected resources, Total is their number before truncation.
	Parts []Part `json:"parts,omitempty"`
	Total int    `json:"total,omitempty"`
}

// Part is a rejected resource, or the rules of one object in it.
type Part struct {
	Resource string `json:"resource"`
	// Route is the object, "httproute/namespace/name"; empty means the whole resource.
	Route  string `json:"route,omitempty"`
	Reason string `json:"reason"`
	// Retained reports whether the previous configuration of the resource is still served.
	Retained bool `json:"retained,omitempty"`
}

// None reports whether nothing is rejected.
func (r Refusal) None() bool { return r.Message == "" && len(r.Parts) == 0 }

// Whole reports whether the proxy serves a previous version.
func (r Refusal) Whole() bool { return r.Message != "" }

// says reports whether two rejections are equal except for the version.
func (r Refusal) says(other Refusal) bool {
	return r.Proxy == other.Proxy && r.Message == other.Message && r.Total == other.Total && slices.Equal(r.Parts, other.Parts)
}

// of returns the rejection of a connected proxy.
func of(proxy server.Proxy) Refusal {
	if proxy.Refusal != "" {
		return Refusal{Proxy: proxy.Pod, Version: proxy.Sent, Message: shorten(proxy.Refusal, maxMessage)}
	}
	if proxy.Refused == nil {
		return Refusal{}
	}
	found := Refusal{Proxy: proxy.Pod, Version: proxy.Sent, Total: int(proxy.Refused.GetTotal())}
	said := proxy.Refused.GetRefusals()
	for _, each := range said[:min(len(said), maxParts)] {
		found.Parts = append(found.Parts, Part{
			Resource: each.GetResource(), Route: each.GetRoute(), Reason: shorten(each.GetReason(), maxMessage/2), Retained: each.GetRetained(),
		})
	}
	return found
}

// Read parses the annotation of a Deployment.
func Read(deployment client.Object) Refusal {
	var found Refusal
	if err := json.Unmarshal([]byte(deployment.GetAnnotations()[Annotation]), &found); err != nil {
		// No annotation, or not written by us.
		return Refusal{}
	}
	return found
}

// Text formats the rejection for statuses and events.
func (r Refusal) Text() string {
	if r.Whole() {
		return "proxy " + r.Proxy + " refuses the configuration and serves the one before: " + r.Message
	}
	texts := make([]string, 0, len(r.Parts))
	for _, part := range r.Parts {
		texts = append(texts, part.Reason)
	}
	return fmt.Sprintf("proxy %s refuses %d resources and serves all others: %s", r.Proxy, r.Total, strings.Join(texts, "; "))
}

// TextOf formats the rejection of a part.
func (r Refusal) TextOf(part Part) string {
	if part.Retained {
		return "proxy " + r.Proxy + " refuses it and serves what was there before: " + part.Reason
	}
	return "proxy " + r.Proxy + " refuses it: " + part.Reason
}

// decide computes the annotation of a Deployment from its current value and the proxies connected to this
// replica. For proxies of other replicas only the existence of the pod is known.
func decide(written Refusal, proxies []server.Proxy, podExists func(pod string) bool) Refusal {
	var own Refusal
	for _, proxy := range slices.SortedFunc(slices.Values(proxies), func(a, b server.Proxy) int { return cmp.Compare(a.Pod, b.Pod) }) {
		// A proxy that serves a previous version takes precedence.
		if said := of(proxy); own.None() || said.Whole() && !own.Whole() {
			own = said
		}
	}
	switch {
	case written.None():
		return own
	case own.says(written):
		// Do not rewrite the annotation for each version.
		return written
	case slices.ContainsFunc(proxies, func(p server.Proxy) bool { return hasAnswered(p, written) }), !podExists(written.Proxy):
		return own
	}
	return written
}

// hasAnswered reports whether a proxy sent a newer acknowledgement to this replica. An old connection of
// the proxy may still be open here after it moved to another replica.
func hasAnswered(proxy server.Proxy, written Refusal) bool {
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
