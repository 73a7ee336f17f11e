// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// most limits the entries of each list of details.
const most = 500

// Details are the details of one row. Lists that do not apply are absent.
type Details struct {
	ID         string      `json:"id"`
	Facts      []Fact      `json:"facts,omitempty"`
	Problems   []Problem   `json:"problems,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
	// Sessions are the sessions of a node or with a router, sorted with those that are down first.
	Sessions []SessionDetails `json:"sessions,omitempty"`
	Pods     []Pod            `json:"pods,omitempty"`
	// Frontends and Drops are from the aggregated API.
	Frontends []Frontend         `json:"frontends,omitempty"`
	Drops     map[string]float64 `json:"drops,omitempty"`
	// Omitted counts the entries beyond the limit of lists.
	Omitted int `json:"omitted,omitempty"`
}

// Fact is a line of text.
type Fact struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Condition is a condition of an object.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// SessionDetails are a node's report of a session.
type SessionDetails struct {
	Node       string    `json:"node"`
	Peer       string    `json:"peer"`
	Address    string    `json:"address"`
	State      string    `json:"state"`
	Up         bool      `json:"up"`
	Since      time.Time `json:"since,omitzero"`
	Message    string    `json:"message,omitempty"`
	BFD        string    `json:"bfd,omitempty"`
	BFDMessage string    `json:"bfdMessage,omitempty"`
	Stale      bool      `json:"stale,omitempty"`
}

// Pod is an endpoint.
type Pod struct {
	Name        string `json:"name"`
	Address     string `json:"address"`
	Node        string `json:"node,omitempty"`
	Ready       bool   `json:"ready"`
	Terminating bool   `json:"terminating,omitempty"`
}

// Frontend has the rates of an address, port and protocol.
type Frontend struct {
	VIP      string `json:"vip"`
	Port     int32  `json:"port"`
	Protocol string `json:"protocol"`
	Rates    Rates  `json:"rates"`
}

// DetailsOf returns the details of a row, and false if the row does not exist.
func DetailsOf(state *State, view *View, id string) (*Details, bool) {
	details := &Details{ID: id}
	kind, name, _ := strings.Cut(id, "/")
	found := false
	switch kind {
	case "node":
		found = details.ofNode(state, name)
	case "router":
		found = details.ofRouter(state, view, name)
	case "service":
		namespace, name, _ := strings.Cut(name, "/")
		found = details.ofService(state, view, namespace, name)
	case "vip":
		found = details.ofVIP(state, name)
	}
	stale := map[string]bool{}
	for i := range view.Nodes {
		node := &view.Nodes[i]
		stale[node.Name] = slices.ContainsFunc(node.Sessions, func(session Session) bool { return session.Stale })
	}
	for i := range details.Sessions {
		details.Sessions[i].Stale = stale[details.Sessions[i].Node]
	}
	for _, problem := range view.Problems {
		if problem.Row == id || slices.Contains(addressesOf(view, id), strings.TrimPrefix(problem.Object, "VIP/")) {
			details.Problems = append(details.Problems, problem)
		}
	}
	return details, found
}

func addressesOf(view *View, id string) []string {
	for i := range view.Services {
		if view.Services[i].ID == id {
			return view.Services[i].VIPs
		}
	}
	return nil
}

func (d *Details) fact(name, text string) {
	if text != "" {
		d.Facts = append(d.Facts, Fact{name, text})
	}
}

func (d *Details) conditions(conditions []metav1.Condition) {
	for _, c := range conditions {
		d.Conditions = append(d.Conditions, Condition{
			Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.Time,
		})
	}
}

func (d *Details) ofNode(state *State, name string) bool {
	at := slices.IndexFunc(state.Input.LBNodes, func(node millracev1beta1.LBNode) bool { return node.Name == name })
	if at < 0 {
		return false
	}
	node := &state.Input.LBNodes[at]
	d.fact("Addresses", strings.Join(node.Spec.Addresses, ", "))
	d.fact("Zone", node.Spec.Zone)
	d.fact("Drain", string(node.Spec.DrainReason))
	for i := range state.Input.LBNodeReports {
		from := &state.Input.LBNodeReports[i]
		if from.Name != name {
			continue
		}
		d.fact("Version", from.Status.Version)
		for _, uplink := range from.Status.Interfaces {
			text := "XDP " + strings.ToLower(string(uplink.XDPMode))
			if uplink.Message != "" {
				text += ": " + uplink.Message
			}
			d.fact("Uplink "+uplink.Name, text)
		}
		for _, exception := range from.Status.Exceptions {
			d.fact("Not announced", exception.Address+": "+cmp.Or(exception.Message, exception.Reason))
		}
		for _, duplicate := range from.Status.Duplicates {
			d.fact("Duplicate address", duplicate.Address+" is that of "+duplicate.HardwareAddress+" on "+duplicate.Interface)
		}
		d.conditions(from.Status.Conditions)
		d.sessions(from, "")
	}
	d.sort()
	return true
}

func (d *Details) sessions(from *millracev1beta1.LBNodeReport, peer string) {
	for _, session := range from.Status.Sessions {
		if peer != "" && session.Peer != peer {
			continue
		}
		details := SessionDetails{
			Node: from.Name, Peer: session.Peer, Address: session.Address, State: string(session.State), Message: session.Message,
			Up: session.State == millracev1beta1.SessionEstablished,
		}
		if session.Since != nil {
			details.Since = session.Since.Time
		}
		if session.BFD != nil {
			details.BFD, details.BFDMessage = string(session.BFD.State), session.BFD.Message
		}
		d.Sessions = append(d.Sessions, details)
	}
}

// sort also cuts long lists.
func (d *Details) sort() {
	slices.SortFunc(d.Sessions, func(a, b SessionDetails) int {
		return cmp.Or(rank(a.Up)-rank(b.Up), report.CompareNames(a.Node, b.Node), report.CompareNames(a.Peer, b.Peer))
	})
	d.Pods = sortPods(d.Pods)
	d.Omitted = max(0, len(d.Sessions)-most) + max(0, len(d.Pods)-most)
	d.Sessions = d.Sessions[:min(most, len(d.Sessions))]
	d.Pods = d.Pods[:min(most, len(d.Pods))]
}

func rank(good bool) int {
	if good {
		return 1
	}
	return 0
}

func (d *Details) ofRouter(state *State, view *View, name string) bool {
	found := slices.ContainsFunc(view.Routers, func(router Router) bool { return router.Name == name })
	for i := range state.Input.Peers {
		peer := &state.Input.Peers[i]
		if peer.Name == name {
			d.fact("Address", routerAddress(peer))
			d.conditions(peer.Status.Conditions)
		}
	}
	for i := range state.Input.LBNodeReports {
		d.sessions(&state.Input.LBNodeReports[i], name)
	}
	d.sort()
	return found
}

func (d *Details) ofService(state *State, view *View, namespace, name string) bool {
	found := false
	for i := range view.Services {
		if row := &view.Services[i]; row.Namespace == namespace && row.Name == name {
			found = true
			d.fact("VIPs", strings.Join(row.VIPs, ", "))
		}
	}
	for i := range state.Input.Services {
		service := &state.Input.Services[i]
		if service.Namespace != namespace || service.Name != name {
			continue
		}
		d.fact("Ports", portsOf(service))
		d.fact("Traffic policy", string(cmp.Or(service.Spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)))
		d.conditions(service.Status.Conditions)
	}
	for i := range state.Input.EndpointSlices {
		slice := &state.Input.EndpointSlices[i]
		if slice.Namespace == namespace && slice.Labels[discoveryv1.LabelServiceName] == name {
			d.Pods = append(d.Pods, podsOf(slice)...)
		}
	}
	if state.Traffic != nil {
		for i := range state.Traffic.Items {
			item := &state.Traffic.Items[i]
			if item.Namespace != namespace || item.Name != name {
				continue
			}
			d.Drops = rounded(item.Drops)
			for _, frontend := range item.Frontends {
				d.Frontends = append(d.Frontends, Frontend{frontend.VIP, frontend.Port, frontend.Protocol, ratesOf(frontend.Rates)})
			}
		}
	}
	d.sort()
	return found
}

func portsOf(service *corev1.Service) string {
	var ports []string
	for _, port := range service.Spec.Ports {
		ports = append(ports, report.PortText(port.Port, port.Protocol))
	}
	return strings.Join(ports, ", ")
}

func podsOf(slice *discoveryv1.EndpointSlice) (pods []Pod) {
	for _, endpoint := range slice.Endpoints {
		if len(endpoint.Addresses) == 0 {
			continue
		}
		pod := Pod{
			Address: endpoint.Addresses[0],
			Ready:   endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready,
		}
		pod.Terminating = endpoint.Conditions.Terminating != nil && *endpoint.Conditions.Terminating
		if endpoint.NodeName != nil {
			pod.Node = *endpoint.NodeName
		}
		pod.Name = pod.Address
		if ref := endpoint.TargetRef; ref != nil && ref.Kind == "Pod" {
			pod.Name = ref.Name
		}
		pods = append(pods, pod)
	}
	return pods
}

// sortPods puts unready pods first and merges entries of a pod with two addresses.
func sortPods(pods []Pod) []Pod {
	slices.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(rank(a.Ready)-rank(b.Ready), report.CompareNames(a.Node, b.Node), report.CompareNames(a.Name, b.Name),
			cmp.Compare(a.Address, b.Address))
	})
	return slices.CompactFunc(pods, func(a, b Pod) bool {
		return a.Name == b.Name && a.Node == b.Node && a.Ready == b.Ready && a.Terminating == b.Terminating
	})
}

func (d *Details) ofVIP(state *State, address string) bool {
	for i := range state.Input.VIPs {
		vip := &state.Input.VIPs[i]
		if vip.Spec.Address == address {
			d.fact("Pool", vip.Spec.Pool)
			d.conditions(vip.Status.Conditions)
			return true
		}
	}
	return false
}
