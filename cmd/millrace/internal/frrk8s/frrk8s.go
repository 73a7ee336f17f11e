// SPDX-License-Identifier: Apache-2.0

// Package frrk8s knows frr-k8s: what its daemons are told by FRRConfigurations, and which sessions
// their FRR has. MetalLB's speakers write one for each node, and others may write more. It is pure.
package frrk8s

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resource is that of FRRConfigurations.
var Resource = schema.GroupVersionResource{Group: "frrk8s.metallb.io", Version: "v1beta1", Resource: "frrconfigurations"}

// Kind is that of FRRConfigurations.
const Kind = "FRRConfiguration"

// Container is that of FRR, beside MetalLB's speaker in mode frr, and in the pods of frr-k8s.
const Container = "frr"

// ShowSessions is the command that prints all of FRR's sessions, for ReadSessions.
var ShowSessions = []string{"vtysh", "-c", "show bgp vrf all neighbors json"}

// Peer is a neighbour of FRR.
type Peer struct {
	// VRF is empty for the default one.
	VRF string
	// ID is the address, or the interface of an unnumbered session.
	ID string
}

func (p Peer) String() string {
	if p.VRF == "" {
		return p.ID
	}
	return p.ID + " in VRF " + p.VRF
}

// NewPeer has one form for each address.
func NewPeer(vrf, id string) Peer {
	if address, err := netip.ParseAddr(id); err == nil {
		id = address.String()
	}
	if vrf == "default" {
		vrf = ""
	}
	return Peer{VRF: vrf, ID: id}
}

// Configuration has the fields of an FRRConfiguration that mean something here.
type Configuration struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		BGP struct {
			Routers []struct {
				VRF       string `json:"vrf"`
				Neighbors []struct {
					Address   string `json:"address"`
					Interface string `json:"interface"`
				} `json:"neighbors"`
			} `json:"routers"`
		} `json:"bgp"`
		Raw struct {
			Config string `json:"rawConfig"`
		} `json:"raw"`
		NodeSelector metav1.LabelSelector `json:"nodeSelector"`
	} `json:"spec"`
}

// speakersPrefix begins the names of those that MetalLB's speakers write, before the node's.
const speakersPrefix = "metallb-"

// NameFor is the name of the one that MetalLB's speaker of a node writes.
func NameFor(node string) string { return speakersPrefix + node }

// BySpeaker reports whether a speaker of MetalLB wrote it.
func (c *Configuration) BySpeaker() bool {
	host, selects := c.Spec.NodeSelector.MatchLabels[corev1.LabelHostname]
	return selects && c.Metadata.Name == NameFor(host)
}

// Name is its namespace and name.
func (c *Configuration) Name() string {
	return fmt.Sprintf("%s %s/%s", Kind, c.Metadata.Namespace, c.Metadata.Name)
}

// Selects reports whether it is for a node with these labels.
func (c *Configuration) Selects(node map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(&c.Spec.NodeSelector)
	return err == nil && selector.Matches(labels.Set(node))
}

// Peers are its neighbours, sorted. Those of raw configuration are not among them.
func (c *Configuration) Peers() []Peer {
	var peers []Peer
	for _, router := range c.Spec.BGP.Routers {
		for _, neighbor := range router.Neighbors {
			peers = append(peers, NewPeer(router.VRF, cmp.Or(neighbor.Address, neighbor.Interface)))
		}
	}
	slices.SortFunc(peers, compare)
	return slices.Compact(peers)
}

func compare(a, b Peer) int { return cmp.Or(cmp.Compare(a.VRF, b.VRF), cmp.Compare(a.ID, b.ID)) }

// Shared are the peers of both, sorted.
func Shared(a, b []Peer) []Peer {
	return slices.DeleteFunc(slices.Clone(a), func(peer Peer) bool { return !slices.Contains(b, peer) })
}

// Sessions are those of an FRR, with whether each is established.
type Sessions map[Peer]bool

// Established counts the peers that it has an established session with.
func (s Sessions) Established(peers []Peer) (established int) {
	for _, peer := range peers {
		if s[peer] {
			established++
		}
	}
	return established
}

// Peers are sorted.
func (s Sessions) Peers() []Peer { return slices.SortedFunc(maps.Keys(s), compare) }

// ReadSessions reads what ShowSessions prints: for each VRF its peers, amid words about itself.
func ReadSessions(printed []byte) (Sessions, error) {
	var vrfs map[string]map[string]json.RawMessage
	if err := json.Unmarshal(printed, &vrfs); err != nil {
		return nil, fmt.Errorf("read FRR's sessions from %.100q: %w", printed, err)
	}
	sessions := Sessions{}
	for vrf, fields := range vrfs {
		for id, value := range fields {
			var peer struct {
				State string `json:"bgpState"`
			}
			// Numbers and names are of the VRF.
			if json.Unmarshal(value, &peer) != nil || peer.State == "" {
				continue
			}
			sessions[NewPeer(vrf, id)] = peer.State == "Established"
		}
	}
	return sessions, nil
}
