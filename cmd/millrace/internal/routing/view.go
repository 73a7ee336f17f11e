// SPDX-License-Identifier: Apache-2.0

// Package routing shows what the gateway makes of Ingresses and of the objects of Gateway
// API: what listens where, whom it leads to, and what is refused. It compiles the objects
// with the gateway's own compiler, and without Secrets. It is pure.
package routing

import (
	"cmp"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/gateway/route"
)

// Input is what the API server holds.
type Input struct {
	Objects        route.Objects
	EndpointSlices []*discoveryv1.EndpointSlice
	// Namespace that Millrace is installed in: where the proxies of IngressClasses are.
	Namespace string
	// NamespaceBytes and ProxyBytes are the room that the gateway gives; 0 is the default.
	NamespaceBytes, ProxyBytes int64
	// Remarks say what could not be read.
	Remarks []string
}

// View is what there is to show. Its lists are sorted.
type View struct {
	Owners   []Owner   `json:"owners"`
	Problems []Problem `json:"problems"`
	Remarks  []string  `json:"remarks,omitempty"`
}

// Name names an object.
type Name struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func (n Name) String() string {
	if n.Namespace == "" {
		return n.Kind + " " + n.Name
	}
	return n.Kind + " " + n.Namespace + "/" + n.Name
}

// Owner is an IngressClass, an Ingress with a VIP of its own, or a Gateway.
type Owner struct {
	Name
	// VIPs are those of its Service; none where it has not got any yet.
	VIPs []string `json:"vips,omitempty"`
	// ReadyProxies are those that take new connections.
	ReadyProxies int        `json:"readyProxies"`
	Listeners    []Listener `json:"listeners"`
	Rules        []Rule     `json:"rules"`
}

// Listener is what answers at a port of the VIPs.
type Listener struct {
	// Name is that of the Gateway's or ListenerSet's listener; the ones of Ingresses are
	// "http" and "https/HOST".
	Name     string `json:"name"`
	Port     int32  `json:"port"`
	Protocol string `json:"protocol"`
	// Hostname is "*" for all hosts.
	Hostname string `json:"hostname"`
}

// Rule is what happens to the requests of a host name that match.
type Rule struct {
	// Route is the object, Rule what it calls the rule: a number, or two.
	Route Name   `json:"route"`
	Rule  string `json:"rule,omitempty"`
	// Listeners are names of the owner's listeners, Ports theirs: "443/HTTPS".
	Listeners []string `json:"listeners"`
	Ports     []string `json:"ports"`
	Hostname  string   `json:"hostname"`
	// Match is a path, which is a prefix, or "= PATH" or "~ EXPRESSION", and what else is
	// asked for.
	Match   string   `json:"match"`
	Filters []string `json:"filters,omitempty"`
	// Answer is what the proxy answers by itself; empty: backends answer.
	Answer   string    `json:"answer,omitempty"`
	Backends []Backend `json:"backends,omitempty"`
}

// Backend is a Service port that takes a share of a rule's requests.
type Backend struct {
	// Namespace and Name are empty where the reference is invalid.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Port      int32  `json:"port,omitempty"`
	Weight    int64  `json:"weight"`
	// TLS is "" where the backend is spoken with in plain text, else the name that it proves.
	TLS string `json:"tls,omitempty"`
	// Refused says that its share is answered with an error, or refused.
	Refused bool `json:"refused,omitempty"`
	// Endpoints take new requests.
	Endpoints []string `json:"endpoints"`
}

// Service names the Service port.
func (b Backend) Service() string {
	if b.Name == "" {
		return "(invalid)"
	}
	return b.Namespace + "/" + b.Name
}

// Problem is why something is refused.
type Problem struct {
	Object Name `json:"object"`
	// Part is the listener or the parent that it is about, if any.
	Part    string `json:"part,omitempty"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func compareNames(a, b Name) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
