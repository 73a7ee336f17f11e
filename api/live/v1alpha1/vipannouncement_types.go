// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeNamesInLists is how many nodes a list names in each of an item's entries. One object that is
// asked for by name has all of them.
const NodeNamesInLists = 10

// VIPAnnouncement is which nodes announce a VIP to which peers, and why the others do not. It has
// the name of the VIP.
//
// +kubebuilder:object:root=true
type VIPAnnouncement struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Address is the VIP.
	Address string `json:"address"`
	// Nodes are those with an agent.
	Nodes NodeCount `json:"nodes"`
	// Announced are nodes that announce the VIP, by the peers they announce it to.
	//
	// +optional
	// +listType=atomic
	Announced []Announced `json:"announced,omitempty"`
	// Withheld are nodes that do not announce the VIP, by reason.
	//
	// +optional
	// +listType=atomic
	Withheld []Withheld `json:"withheld,omitempty"`
}

// Announced are nodes that announce a VIP to the same peers.
type Announced struct {
	// Peers are the LBPeers with an established session.
	//
	// +listType=atomic
	Peers []string `json:"peers"`
	// Count is how many nodes do so.
	Count int32 `json:"count"`
	// Nodes are their names, sorted. A list of VIPAnnouncements has the first ten.
	//
	// +listType=atomic
	Nodes []string `json:"nodes"`
	// NodeRanges are the places of all of them in the field answered of a list, from 0, as in
	// 0-4,7. It is absent from what is no part of a list.
	//
	// +optional
	NodeRanges string `json:"nodeRanges,omitempty"`
}

// Withheld are nodes that do not announce a VIP, for the same reason.
type Withheld struct {
	// Reason is one word.
	Reason string `json:"reason"`
	// Message is a sentence.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// Count is how many nodes say so.
	Count int32 `json:"count"`
	// Nodes are their names, sorted. A list of VIPAnnouncements has the first ten.
	//
	// +listType=atomic
	Nodes []string `json:"nodes"`
	// NodeRanges are the places of all of them in the field answered of a list, from 0, as in
	// 0-4,7. It is absent from what is no part of a list.
	//
	// +optional
	NodeRanges string `json:"nodeRanges,omitempty"`
}

// NodeAnswers says which nodes a list is made of.
type NodeAnswers struct {
	// Answered are the names of the nodes that the list is of, sorted.
	//
	// +optional
	// +listType=atomic
	Answered []string `json:"answered,omitempty"`
	// Silent are the names of those that did not answer, sorted: nothing of theirs is in the list.
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
