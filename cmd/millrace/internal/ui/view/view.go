// SPDX-License-Identifier: Apache-2.0

// Package view makes what the page of `millrace ui` shows from the API server's objects and the
// aggregated API. It is pure. Rows are compared by their JSON, so that only those that changed are
// sent to the page.
package view

import (
	"time"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// State is what is known of a cluster at about one moment.
type State struct {
	// Cluster is the name of the context, or the host of the API server.
	Cluster string
	// Input are the objects. Those of kinds that may not be read are missing.
	Input *report.Input
	// Refused are these kinds.
	Refused []Refusal
	// Traffic and Announcements are from the aggregated API; nil where it is not read.
	Traffic       *livev1alpha1.ServiceTrafficList
	Announcements *livev1alpha1.VIPAnnouncementList
	// Away is that the API server does not answer, or refuses; nil where it does answer.
	Away *Outage
	// Live is why the aggregated API is not read, or only in part; nil where it is.
	Live *Outage
}

// Outage is that a server does not tell what it is asked.
type Outage struct {
	// Since is when the first question was asked that it did not answer.
	Since time.Time `json:"since"`
	// Seen is when it answered last: what is shown of it is from then. It is zero where nothing is
	// shown of it.
	Seen time.Time `json:"seen,omitzero"`
	// Message is what was asked last, of which server, and what came of it.
	Message string `json:"message"`
}

// Refusal is a kind that the user may not read, or that the API server does not have.
type Refusal struct {
	// Kind is the plural, as in RBAC.
	Kind string `json:"kind"`
	// Message is what the API server says.
	Message string `json:"message"`
}

// Level is how well something is.
type Level string

// Levels, from bad to good.
const (
	// Bad does not work.
	Bad Level = "bad"
	// Warning works in part, or needs attention.
	Warning Level = "warning"
	// Unknown is not known, as where a kind may not be read.
	Unknown Level = "unknown"
	// Idle is not meant to work: a drained node, or a reserved address.
	Idle Level = "idle"
	// Good works.
	Good Level = "good"
)

var severity = map[Level]int{Bad: 0, Warning: 1, Unknown: 2, Idle: 3, Good: 4}

// View is what the page shows. Its lists are sorted by name.
type View struct {
	Head     Head
	Routers  []Router
	Nodes    []Node
	Services []Service
	Problems []Problem
	// Answered are the nodes whose places Service.Ranges gives.
	Answered []string
}

// Count is how many of all are good, and of how many that is not known.
type Count struct {
	Good    int `json:"good"`
	All     int `json:"all"`
	Unknown int `json:"unknown,omitempty"`
}

func (c *Count) add(good, known bool) {
	c.All++
	switch {
	case !known:
		c.Unknown++
	case good:
		c.Good++
	}
}

func (c *Count) addAll(other Count) {
	c.Good += other.Good
	c.All += other.All
	c.Unknown += other.Unknown
}

// Head is about the whole cluster.
type Head struct {
	Cluster  string `json:"cluster"`
	Nodes    Count  `json:"nodes"`
	Sessions Count  `json:"sessions"`
	BFD      Count  `json:"bfd"`
	// VIPs are those of Services that a node announces, by the aggregated API or else by the nodes' reports.
	VIPs      Count `json:"vips"`
	Endpoints Count `json:"endpoints"`
	// Rates are absent without the aggregated API.
	Rates *Rates `json:"rates,omitempty"`
	// Drops are packets per second, by reason, also of those for no Service.
	Drops map[string]float64 `json:"drops,omitempty"`
	// Window is the seconds that rates are means of.
	Window float64 `json:"window,omitempty"`
	// Silent is how many nodes the aggregated API got no answer of.
	Silent int `json:"silent,omitempty"`
	// SilentNodes are the first of these.
	SilentNodes []string  `json:"silentNodes,omitempty"`
	Away        *Outage   `json:"away,omitempty"`
	Live        *Outage   `json:"live,omitempty"`
	Refused     []Refusal `json:"refused,omitempty"`
	// Next are the steps that are missing before a Service is served.
	Next []string `json:"next,omitempty"`
}

// Rates are per second.
type Rates struct {
	Connections float64 `json:"connections"`
	Packets     float64 `json:"packets"`
	Bits        float64 `json:"bits"`
	Drops       float64 `json:"drops"`
}

// Router is an LBPeer.
type Router struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Level Level  `json:"level"`
	Note  string `json:"note,omitempty"`
	// Address is that of the router, or how it is found.
	Address  string `json:"address,omitempty"`
	ASN      int64  `json:"asn,omitempty"`
	Sessions Count  `json:"sessions"`
	BFD      Count  `json:"bfd"`
}

// Node is a node that forwards.
type Node struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Zone  string `json:"zone,omitempty"`
	Level Level  `json:"level"`
	// Note is the first of its problems.
	Note string `json:"note,omitempty"`
	// Reason is that of Note, by which nodes are grouped.
	Reason   string    `json:"reason,omitempty"`
	Sessions []Session `json:"sessions,omitempty"`
	// Announced is how many VIPs it announces.
	Announced int `json:"announced"`
}

// Session is a BGP session of a node, and the BFD session beside it.
type Session struct {
	Peer  string `json:"peer"`
	State string `json:"state"`
	Up    bool   `json:"up"`
	BFD   string `json:"bfd,omitempty"`
	// Stale is true if the node's report may be old: no agent is known to run there.
	Stale bool `json:"stale,omitempty"`
}

// Service is a Service with its VIPs, or a VIP that no Service has.
type Service struct {
	ID        string   `json:"id"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name"`
	VIPs      []string `json:"vips,omitempty"`
	Level     Level    `json:"level"`
	Note      string   `json:"note,omitempty"`
	Reason    string   `json:"reason,omitempty"`
	Endpoints Count    `json:"endpoints"`
	// Announcing is how many nodes announce a VIP of it, the least of its VIPs; it is absent where
	// that is not known.
	Announcing *int `json:"announcing,omitempty"`
	// By are these nodes, where there are few in the cluster.
	By []string `json:"by,omitempty"`
	// Ranges are they in larger ones, as places in View.Answered; see livev1alpha1.Announced. It is
	// absent where it would be long.
	Ranges string `json:"ranges,omitempty"`
	// Pods are its endpoints, where there are few in the cluster.
	Pods  []Pod  `json:"pods,omitempty"`
	Rates *Rates `json:"rates,omitempty"`
}

// Problem is one of the report, and the row that it is about.
type Problem struct {
	ID      string `json:"id"`
	Level   Level  `json:"level"`
	Object  string `json:"object"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Row is the ID of a router, a node or a Service; empty where the page has none.
	Row string `json:"row,omitempty"`
}

// Identifiers of rows; they are also what the page keeps in its URL.
func routerID(name string) string             { return "router/" + name }
func nodeID(name string) string               { return "node/" + name }
func serviceID(namespace, name string) string { return "service/" + namespace + "/" + name }
func vipID(address string) string             { return "vip/" + address }
