// SPDX-License-Identifier: Apache-2.0

// Package nack reports resources that proxies reject. Only the leader writes statuses, so each replica
// stores the rejections of its proxies in an annotation of their Deployment, which the leader reads.
package nack

import (
	"cmp"
	"encoding/json"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/gateway/distribution"
	"github.com/millrace-lb/millrace/gateway/distribution/server"
)

// Annotation is set on an owner's proxy Deployment to the resources that a proxy rejects, as JSON.
const Annotation = "millrace.io/rejected-resources"

// Rejection is a proxy's rejection of resources. The zero value is no rejection.
type Rejection struct {
	// Proxy is the pod, "namespace/name".
	Proxy string `json:"proxy"`
	// Version is the first version with this message.
	Version string `json:"version"`
	// Message contains the errors of the resources.
	Message string `json:"message"`
}

// IsZero reports whether nothing is rejected.
func (r Rejection) IsZero() bool { return r.Message == "" }

func fromProxy(proxy server.Proxy) Rejection {
	if proxy.Refusal == "" {
		return Rejection{}
	}
	return Rejection{Proxy: proxy.Pod, Version: proxy.Sent, Message: proxy.Refusal}
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
	return "proxy " + r.Proxy + " rejects resources and serves all others: " + r.Message
}

// nextRejection computes a Deployment's annotation. Of other replicas' proxies only the existence of the
// pod is known.
func nextRejection(written Rejection, proxies []server.Proxy, podExists func(pod string) bool) Rejection {
	var own Rejection
	for _, proxy := range slices.SortedFunc(slices.Values(proxies), func(a, b server.Proxy) int { return cmp.Compare(a.Pod, b.Pod) }) {
		if own.IsZero() {
			own = fromProxy(proxy)
		}
	}
	switch {
	case written.IsZero():
		return own
	case own.Proxy == written.Proxy && own.Message == written.Message:
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
	return proxy.Pod == written.Proxy && proxy.Acknowledged != "" &&
		distribution.Order(proxy.Acknowledged) >= distribution.Order(written.Version)
}
