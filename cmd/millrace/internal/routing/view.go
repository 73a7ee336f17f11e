// SPDX-License-Identifier: Apache-2.0

// Package routing shows the gateway's configuration: listeners, rules, backends, and rejected objects, by
// the gateway's own compiler without Secrets. It is pure.
package routing

import (
	"cmp"

	discoveryv1 "k8s.io/api/discovery/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Input are the objects of the API server.
type Input struct {
	Objects        model.Objects
	EndpointSlices []*discoveryv1.EndpointSlice
	Namespace      string
	// NamespaceBytes and ProxyBytes are the gateway's limits in bytes; 0: the defaults.
	NamespaceBytes, ProxyBytes int64
	// Remarks describe objects that could not be read.
	Remarks []string

	// assumed are Gateways that the user may not read.
	assumed map[key]*gatewayv1.Gateway
}

// View is the result. Its lists are sorted.
type View struct {
	Owners   []Owner   `json:"owners"`
	Problems []Problem `json:"problems"`
	Remarks  []string  `json:"remarks,omitempty"`
}

// Name identifies an object.
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

// Owner is an IngressClass, an Ingress with its own VIP, or a Gateway.
type Owner struct {
	Name
	// VIPs are the addresses of its Service; empty until one is assigned.
	VIPs []string `json:"vips,omitempty"`
	// Assumed is true for a Gateway that the user may not read, so that its listeners and VIPs are unknown.
	Assumed bool `json:"assumed,omitempty"`
	// ReadyProxies counts the proxies that accept new connections.
	ReadyProxies int        `json:"readyProxies"`
	Listeners    []Listener `json:"listeners"`
	Rules        []Rule     `json:"rules"`
}

// Listener is a listener at a port of the VIPs.
type Listener struct {
	// Name is that of a Gateway's or ListenerSet's listener, or "http" or "https/HOST" of an Ingress.
	Name     string `json:"name"`
	Port     int32  `json:"port"`
	Protocol string `json:"protocol"`
	// Hostname is "*" for all hosts.
	Hostname string `json:"hostname"`
}

// Rule is a rule for requests of a host name.
type Rule struct {
	// Route is the object, Rule the index or indexes of the rule in it.
	Route Name   `json:"route"`
	Rule  string `json:"rule,omitempty"`
	// Listeners are names of the owner's listeners, Ports their ports: "443/HTTPS".
	Listeners []string `json:"listeners"`
	Ports     []string `json:"ports"`
	Hostname  string   `json:"hostname"`
	// Match is a path prefix, "= PATH" or "~ EXPRESSION", followed by the other conditions of the match.
	Match   string   `json:"match"`
	Filters []string `json:"filters,omitempty"`
	// Answer is the response of the proxy itself; empty: backends respond.
	Answer   string    `json:"answer,omitempty"`
	Backends []Backend `json:"backends,omitempty"`
}

// Backend is a Service port with its share of a rule's requests.
type Backend struct {
	// Namespace and Name are empty if the reference is invalid.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Port      int32  `json:"port,omitempty"`
	Weight    int64  `json:"weight"`
	// TLS is the name in the backend's certificate, or "" for plain text.
	TLS string `json:"tls,omitempty"`
	// Refused is true if the backend's share is answered with an error, or the connection is rejected.
	Refused   bool     `json:"refused,omitempty"`
	Endpoints []string `json:"endpoints"`
}

// Service returns namespace/name of the Service.
func (b Backend) Service() string {
	if b.Name == "" {
		return "(invalid)"
	}
	return b.Namespace + "/" + b.Name
}

// Problem is a rejected object with the reason.
type Problem struct {
	Object Name `json:"object"`
	// Part is the listener or the parent that has the problem, if any.
	Part    string `json:"part,omitempty"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func compareNames(a, b Name) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
