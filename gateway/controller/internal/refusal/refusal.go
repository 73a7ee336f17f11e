// SPDX-License-Identifier: Apache-2.0

// Package refusal tells of proxies that refuse their configuration. A proxy says so only to the
// replica that it is connected to, and only the leader writes statuses. So each replica leaves what
// its proxies say on their Deployment, as an annotation, which the leader reads.
package refusal

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/gateway/distribution"
	"github.com/millrace-lb/millrace/gateway/distribution/server"
)

// Annotation is, on what runs the proxies of an owner, why one refuses its configuration, as JSON.
const Annotation = "millrace.io/refused-configuration"

// maxMessage is the longest message that is kept, in bytes: a proxy has written it.
const maxMessage = 512

// Refusal is what a proxy says of its configuration. The zero value is none.
type Refusal struct {
	// Proxy is the pod: "namespace/name".
	Proxy string `json:"proxy"`
	// Version is the first one that was refused like this.
	Version string `json:"version"`
	Message string `json:"message"`
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
	return "proxy " + r.Proxy + " refuses the configuration and serves the one before: " + r.Message
}

// decide gives what the annotation has to say. proxies are those of the Deployment that are connected
// to this replica. About another one's proxy this replica knows only whether its pod is there.
func decide(written Refusal, proxies []server.Proxy, podExists func(pod string) bool) Refusal {
	var own Refusal
	for _, proxy := range slices.SortedFunc(slices.Values(proxies), func(a, b server.Proxy) int { return cmp.Compare(a.Pod, b.Pod) }) {
		if proxy.Refusal != "" {
			own = Refusal{Proxy: proxy.Pod, Version: proxy.Sent, Message: shorten(proxy.Refusal)}
			break
		}
	}
	switch {
	case written == Refusal{}:
		return own
	case own.Proxy == written.Proxy && own.Message == written.Message:
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

func shorten(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage-4], "") + " ..."
}
