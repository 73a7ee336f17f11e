// SPDX-License-Identifier: Apache-2.0

// Package frrk8s reads FRRConfigurations and the sessions of their FRR, for MetalLB's speakers (one per
// node) and other programs. It is pure.
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

// Resource is the resource of FRRConfigurations.
var Resource = schema.GroupVersionResource{Group: "frrk8s.metallb.io", Version: "v1beta1", Resource: "frrconfigurations"}

// Kind is the kind of FRRConfigurations.
const Kind = "FRRConfiguration"

// Container is FRR's container, in the pods of MetalLB's speakers (mode frr) and of frr-k8s.
const Container = "frr"

// ShowSessions is the command that prints all of FRR's sessions, for ReadSessions.
var ShowSessions = []string{"vtysh", "-c", "show bgp vrf all neighbors json"}

// Peer is a neighbour of FRR.
type Peer struct {
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

// NewPeer normalizes the address and the VRF.
func NewPeer(vrf, id string) Peer {
	if address, err := netip.ParseAddr(id); err == nil {
		id = address.String()
	}
	if vrf == "default" {
		vrf = ""
	}
	return Peer{VRF: vrf, ID: id}
}

// Configuration has the fields of an FRRConfiguration that are used here.
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

// speakersPrefix precedes the node's name in the names of MetalLB's FRRConfigurations.
const speakersPrefix = "metallb-"

// NameFor returns the name of the FRRConfiguration of a node's MetalLB speaker.
func NameFor(node string) string { return speakersPrefix + node }

// BySpeaker reports whether a speaker of MetalLB wrote it.
func (c *Configuration) BySpeaker() bool {
	host, selects := c.Spec.NodeSelector.MatchLabels[corev1.LabelHostname]
	return selects && c.Metadata.Name == NameFor(host)
}

// Name returns the kind, namespace and name.
func (c *Configuration) Name() string {
	return fmt.Sprintf("%s %s/%s", Kind, c.Metadata.Namespace, c.Metadata.Name)
}

// Selects reports whether it applies to a node with these labels.
func (c *Configuration) Selects(node map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(&c.Spec.NodeSelector)
	return err == nil && selector.Matches(labels.Set(node))
}

// Peers returns its neighbours, sorted, without those of raw configuration.
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

// Shared returns the peers of both, sorted.
func Shared(a, b []Peer) []Peer {
	return slices.DeleteFunc(slices.Clone(a), func(peer Peer) bool { return !slices.Contains(b, peer) })
}

// Sessions maps the peers of an FRR to whether their session is established.
type Sessions map[Peer]bool

// Established counts the peers with an established session.
func (s Sessions) Established(peers []Peer) (established int) {
	for _, peer := range peers {
		if s[peer] {
			established++
		}
	}
	return established
}

// Peers returns the peers, sorted.
func (s Sessions) Peers() []Peer { return slices.SortedFunc(maps.Keys(s), compare) }

// ReadSessions parses the output of ShowSessions.
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
			// Skip fields of the VRF itself.
			if json.Unmarshal(value, &peer) != nil || peer.State == "" {
				continue
			}
			sessions[NewPeer(vrf, id)] = peer.State == "Established"
		}
	}
	return sessions, nil
}
