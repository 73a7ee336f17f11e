// SPDX-License-Identifier: Apache-2.0

// Package refusal tells of proxies that refuse their configuration. A proxy says so only to the
// replica that it is connected to, and only the leader writes statuses. So each replica leaves what
// its proxies say on their Deployment, as an annotation, which the leader reads.
package refusal

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

// Annotation is, on what runs the proxies of an owner, why one refuses its configuration, as JSON.
const Annotation = "millrace.io/refused-configuration"

const (
	// maxMessage is the longest message that is kept, in bytes: a proxy has written it.
	maxMessage = 512
	// maxParts is how many refused resources are kept.
	maxParts = 50
)

// Refusal is what a proxy says of its configuration. The zero value is none.
type Refusal struct {
	// Proxy is the pod: "namespace/name".
	Proxy string `json:"proxy"`
	// Version is the first one that was refused like this.
	Version string `json:"version"`
	// Message is why the whole version is refused; empty where all but Parts is served.
	Message string `json:"message,omitempty"`
	// Parts are what is refused of a version, Total how many there are.
	Parts []Part `json:"parts,omitempty"`
	Total int    `json:"total,omitempty"`
}

// Part is a resource that a proxy refuses, or the rules of an object in it.
type Part struct {
	Resource string `json:"resource"`
	// Route is the object, "httproute/namespace/name"; empty: all of the resource.
	Route  string `json:"route,omitempty"`
	Reason string `json:"reason"`
	// Retained reports whether the previous configuration is served.
	Retained bool `json:"retained,omitempty"`
}

// None reports whether nothing is refused.
func (r Refusal) None() bool { return r.Message == "" && len(r.Parts) == 0 }

// Whole reports whether the proxy serves an older version.
func (r Refusal) Whole() bool { return r.Message != "" }

// says reports whether two refusals of a proxy say the same, of whichever version.
func (r Refusal) says(other Refusal) bool {
	return r.Proxy == other.Proxy && r.Message == other.Message && r.Total == other.Total && slices.Equal(r.Parts, other.Parts)
}

// of is what a proxy says.
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

// Read reads the annotation of a Deployment.
func Read(deployment client.Object) Refusal {
	var found Refusal
	if err := json.Unmarshal([]byte(deployment.GetAnnotations()[Annotation]), &found); err != nil {
		// None, or something that nobody of ours has written.
		return Refusal{}
	}
	return found
}

// Text says it to people.
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

// TextOf says it of a part.
func (r Refusal) TextOf(part Part) string {
	if part.Retained {
		return "proxy " + r.Proxy + " refuses it and serves what was there before: " + part.Reason
	}
	return "proxy " + r.Proxy + " refuses it: " + part.Reason
}

// decide gives what the annotation has to say. proxies are those of the Deployment that are connected
// to this replica. About another one's proxy this replica knows only whether its pod is there.
func decide(written Refusal, proxies []server.Proxy, podExists func(pod string) bool) Refusal {
	var own Refusal
	for _, proxy := range slices.SortedFunc(slices.Values(proxies), func(a, b server.Proxy) int { return cmp.Compare(a.Pod, b.Pod) }) {
		// One that serves an older version has more to say.
		if said := of(proxy); own.None() || said.Whole() && !own.Whole() {
			own = said
		}
	}
	switch {
	case written.None():
		return own
	case own.says(written):
		// Nobody wants to know of each version.
		return written
	case slices.ContainsFunc(proxies, func(p server.Proxy) bool { return hasAnswered(p, written) }), !podExists(written.Proxy):
		return own
	}
	return written
}

// hasAnswered reports whether a proxy has said something newer here. Its connection to this replica
// may be one that it has left, which nobody has noticed yet.
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
