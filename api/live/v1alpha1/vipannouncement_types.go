// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeNamesInLists limits the node names in each entry of a list's items. A single object requested by name
// has all of them.
const NodeNamesInLists = 10

// VIPAnnouncement represents the nodes that announce a VIP with their peers, and the reasons why other
// nodes do not. It has the name of the VIP.
//
// +kubebuilder:object:root=true
type VIPAnnouncement struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Address is the VIP.
	Address string `json:"address"`
	// Nodes counts the nodes with an agent.
	Nodes NodeCount `json:"nodes"`
	// Announced are nodes that announce the VIP, grouped by the peers they announce it to.
	//
	// +optional
	// +listType=atomic
	Announced []Announced `json:"announced,omitempty"`
	// Withheld are nodes that do not announce the VIP, grouped by reason.
	//
	// +optional
	// +listType=atomic
	Withheld []Withheld `json:"withheld,omitempty"`
}

// Announced is a group of nodes that announce a VIP to the same peers.
type Announced struct {
	// Peers are the LBPeers with an established session.
	//
	// +listType=atomic
	Peers []string `json:"peers"`
	// Count is the number of nodes.
	Count int32 `json:"count"`
	// Nodes are their names, sorted. A list of VIPAnnouncements has the first ten.
	//
	// +listType=atomic
	Nodes []string `json:"nodes"`
	// NodeRanges are the indexes of all these nodes in the list's field answered, from 0, such as 0-4,7. It
	// is absent from a single object.
	//
	// +optional
	NodeRanges string `json:"nodeRanges,omitempty"`
}

// Withheld is a group of nodes that do not announce a VIP for the same reason.
type Withheld struct {
	// Reason is one word.
	Reason string `json:"reason"`
	// Message is a sentence.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// Count is the number of nodes.
	Count int32 `json:"count"`
	// Nodes are their names, sorted. A list of VIPAnnouncements has the first ten.
	//
	// +listType=atomic
	Nodes []string `json:"nodes"`
	// NodeRanges are the indexes of all these nodes in the list's field answered, from 0, such as 0-4,7. It
	// is absent from a single object.
	//
	// +optional
	NodeRanges string `json:"nodeRanges,omitempty"`
}

// NodeAnswers are the nodes that a list is computed from.
type NodeAnswers struct {
	// Answered are the names of the nodes in the list, sorted.
	//
	// +optional
	// +listType=atomic
	Answered []string `json:"answered,omitempty"`
	// Silent are the names of nodes that did not answer, sorted: the list has no data of these nodes.
	//
	// +optional
	// +listType=atomic
	Silent []string `json:"silent,omitempty"`
}

// VIPAnnouncementList is a list of VIPAnnouncements.
//
// +kubebuilder:object:root=true
type VIPAnnouncementList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	NodeAnswers     `json:",inline"`
	// Items are sorted by name.
	Items []VIPAnnouncement `json:"items"`
}
