// SPDX-License-Identifier: Apache-2.0

// Package view computes the page of `millrace ui` from API objects and the aggregated API. It is pure. Rows
// are compared by their JSON, so that only changed rows are sent to the page.
package view

import (
	"time"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// State is the state of a cluster at about one moment.
type State struct {
	// Cluster is the name of the context, or the host of the API server.
	Cluster string
	Input   *report.Input
	Refused []Refusal
	// Traffic and Announcements are from the aggregated API; nil if they could not be read.
	Traffic       *livev1alpha1.ServiceTrafficList
	Announcements *livev1alpha1.VIPAnnouncementList
	// APIOutage is the outage of the API server, or nil.
	APIOutage *Outage
	// LiveOutage is the reason why the aggregated API is not read, or only in part; otherwise nil.
	LiveOutage *Outage
}

// Outage is a period without answers of a server.
type Outage struct {
	// Since is the time of the first request without an answer.
	Since time.Time `json:"since"`
	// Seen is the time of the last answer with the shown data, or zero without such data.
	Seen    time.Time `json:"seen,omitzero"`
	Message string    `json:"message"`
}

// Refusal is a kind that the user may not read, or that the API server does not serve.
type Refusal struct {
	// Kind is the plural, as in RBAC.
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// Level is the severity of a row.
type Level string

// Levels of states.
const (
	Bad Level = "bad"
	// Warning works in part, or needs attention.
	Warning Level = "warning"
	// Unknown could not be determined, for example because a kind may not be read.
	Unknown Level = "unknown"
	// Idle is out of service on purpose: a drained node, or a reserved address.
	Idle Level = "idle"
	Good Level = "good"
)

var severity = map[Level]int{Bad: 0, Warning: 1, Unknown: 2, Idle: 3, Good: 4}

// View is the content of the page. Its lists are sorted by name.
type View struct {
	Head     Head
	Routers  []Router
	Nodes    []Node
	Services []Service
	Pools    []Pool
	Problems []Problem
	// Answered are the nodes that Service.Ranges indexes.
	Answered []string
}

// Count is the number of good and unknown objects among All.
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

// Head summarizes the cluster.
type Head struct {
	Cluster  string `json:"cluster"`
	Nodes    Count  `json:"nodes"`
	Sessions Count  `json:"sessions"`
	BFD      Count  `json:"bfd"`
	// VIPs counts VIPs with Services; announced ones, by the aggregated API or reports, are good.
	VIPs      Count `json:"vips"`
	Endpoints Count `json:"endpoints"`
	// Rates are absent without the aggregated API.
	Rates *Rates `json:"rates,omitempty"`
	// Drops are packets per second by reason, including packets that belong to no Service.
	Drops map[string]float64 `json:"drops,omitempty"`
	// Window is the period of the rates in seconds.
	Window float64 `json:"window,omitempty"`
	// Silent counts the nodes that do not answer the aggregated API.
	Silent int `json:"silent,omitempty"`
	// SilentNodes are the first of these nodes.
	SilentNodes []string  `json:"silentNodes,omitempty"`
	Away        *Outage   `json:"away,omitempty"`
	Live        *Outage   `json:"live,omitempty"`
	Refused     []Refusal `json:"refused,omitempty"`
	// Next are the missing steps before a Service is served.
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
	// Address is the router's address, or the method of discovery.
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
	Note  string `json:"note,omitempty"`
	// Reason is the reason of Note, by which the page groups nodes.
	Reason   string    `json:"reason,omitempty"`
	Sessions []Session `json:"sessions,omitempty"`
	// Announced counts the VIPs that the node announces.
	Announced int `json:"announced"`
}

// Session is a BGP session of a node, with its BFD session.
type Session struct {
	Peer  string `json:"peer"`
	State string `json:"state"`
	Up    bool   `json:"up"`
	BFD   string `json:"bfd,omitempty"`
	// Stale is true if the node's report may be old, because no agent is known to run there.
	Stale bool `json:"stale,omitempty"`
}

// Service is a Service with its VIPs, or a VIP without a Service.
type Service struct {
	ID        string   `json:"id"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name"`
	VIPs      []string `json:"vips,omitempty"`
	Level     Level    `json:"level"`
	Note      string   `json:"note,omitempty"`
	Reason    string   `json:"reason,omitempty"`
	Endpoints Count    `json:"endpoints"`
	// Announcing is the least number of nodes that announce one of its VIPs; absent if unknown.
	Announcing *int `json:"announcing,omitempty"`
	// By are these nodes in small clusters.
	By []string `json:"by,omitempty"`
	// Ranges are short indexes into View.Answered in large clusters; see livev1alpha1.Announced.
	Ranges string `json:"ranges,omitempty"`
	Pods   []Pod  `json:"pods,omitempty"`
	Rates  *Rates `json:"rates,omitempty"`
}

// Pool is a VIPPool.
type Pool struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"`
	Level     Level    `json:"level"`
	Note      string   `json:"note,omitempty"`
	Addresses []string `json:"addresses"`
	// Assigned counts addresses with VIPs, Free those that can be assigned; absent until counted.
	Assigned *int64 `json:"assigned,omitempty"`
	Free     string `json:"free,omitempty"`
}

// Problem is a problem of the report, with its row.
type Problem struct {
	ID      string `json:"id"`
	Level   Level  `json:"level"`
	Object  string `json:"object"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Row is the ID of a router, a node or a Service; empty if the page has no row for the object.
	Row string `json:"row,omitempty"`
	// Since is the time of the condition's transition, or zero if unknown.
	Since time.Time `json:"since,omitzero"`

	cause report.CauseKey
}

// Cause is the first problem with a cause and a level, and the other objects with it.
type Cause struct {
	Problem
	// Count is the number of objects.
	Count int `json:"count"`
	// Rows are the rows of the first objects.
	Rows []string `json:"rows,omitempty"`
}

// Identifiers of rows; the page also keeps them in its URL.
func routerID(name string) string             { return "router/" + name }
func nodeID(name string) string               { return "node/" + name }
func serviceID(namespace, name string) string { return "service/" + namespace + "/" + name }
func vipID(address string) string             { return "vip/" + address }
