// SPDX-License-Identifier: Apache-2.0

// Package metallb converts MetalLB's objects to equivalent objects of Millrace.
package metallb

import (
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/frrk8s"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
)

// The converted fields of MetalLB's kinds (metallb.io/v1beta1, v1beta2 of BGPPeer).

type addressPool struct {
	migration.Meta
	Spec struct {
		Addresses         []string `json:"addresses"`
		AutoAssign        *bool    `json:"autoAssign"`
		AvoidBuggyIPs     bool     `json:"avoidBuggyIPs"`
		ServiceAllocation *struct {
			Priority           int                    `json:"priority"`
			Namespaces         []string               `json:"namespaces"`
			NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors"`
			ServiceSelectors   []metav1.LabelSelector `json:"serviceSelectors"`
		} `json:"serviceAllocation"`
	} `json:"spec"`
}

type bgpPeer struct {
	migration.Meta
	Spec struct {
		MyASN          int64                  `json:"myASN"`
		PeerASN        int64                  `json:"peerASN"`
		DynamicASN     string                 `json:"dynamicASN"`
		PeerAddress    string                 `json:"peerAddress"`
		Interface      string                 `json:"interface"`
		SourceAddress  string                 `json:"sourceAddress"`
		PeerPort       int32                  `json:"peerPort"`
		HoldTime       *metav1.Duration       `json:"holdTime"`
		KeepaliveTime  *metav1.Duration       `json:"keepaliveTime"`
		ConnectTime    *metav1.Duration       `json:"connectTime"`
		RouterID       string                 `json:"routerID"`
		NodeSelectors  []metav1.LabelSelector `json:"nodeSelectors"`
		Password       string                 `json:"password"`
		PasswordSecret *struct {
			Name string `json:"name"`
		} `json:"passwordSecret"`
		BFDProfile   string `json:"bfdProfile"`
		EBGPMultiHop bool   `json:"ebgpMultiHop"`
		VRF          string `json:"vrf"`
		// EnableGracefulRestart is the default of LBPeers.
		EnableGracefulRestart  bool `json:"enableGracefulRestart"`
		DualStackAddressFamily bool `json:"dualStackAddressFamily"`
	} `json:"spec"`
}

type bgpAdvertisement struct {
	migration.Meta
	Spec struct {
		AggregationLength      *int32                 `json:"aggregationLength"`
		AggregationLengthV6    *int32                 `json:"aggregationLengthV6"`
		LocalPref              int64                  `json:"localPref"`
		Communities            []string               `json:"communities"`
		IPAddressPools         []string               `json:"ipAddressPools"`
		IPAddressPoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors"`
		NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors"`
		Peers                  []string               `json:"peers"`
	} `json:"spec"`
}

type bfdProfile struct {
	migration.Meta
	Spec struct {
		ReceiveInterval  *uint32 `json:"receiveInterval"`
		TransmitInterval *uint32 `json:"transmitInterval"`
		DetectMultiplier *uint32 `json:"detectMultiplier"`
		EchoInterval     *uint32 `json:"echoInterval"`
		EchoMode         bool    `json:"echoMode"`
		PassiveMode      bool    `json:"passiveMode"`
		MinimumTTL       *uint32 `json:"minimumTtl"`
	} `json:"spec"`
}

type community struct {
	migration.Meta
	Spec struct {
		Communities []struct {
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"communities"`
	} `json:"spec"`
}

type l2Advertisement struct {
	migration.Meta
	Spec struct {
		IPAddressPools         []string               `json:"ipAddressPools"`
		IPAddressPoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors"`
		NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors"`
		ServiceSelectors       []metav1.LabelSelector `json:"serviceSelectors"`
		Interfaces             []string               `json:"interfaces"`
	} `json:"spec"`
}

// Objects are the MetalLB objects of a cluster.
type Objects struct {
	pools          []addressPool
	peers          []bgpPeer
	advertisements []bgpAdvertisement
	profiles       []bfdProfile
	communities    []community
	layer2         []l2Advertisement
	frr            []frrk8s.Configuration
	unknown        migration.Notes
}

// Read parses a stream of YAML or JSON objects; kinds of other projects are an error.
func Read(r io.Reader) (*Objects, error) {
	objects := &Objects{}
	if err := migration.Read(r, "MetalLB", objects.add); err != nil {
		return nil, err
	}
	return objects, nil
}

func (o *Objects) add(object migration.Object) error {
	if strings.HasPrefix(object.APIVersion, frrk8s.Resource.Group+"/") {
		if object.Kind != frrk8s.Kind {
			return nil // statuses
		}
		return migration.Decode(object, &o.frr, nil)
	}
	if !strings.HasPrefix(object.APIVersion, "metallb.io/") {
		return object.ErrForeign()
	}
	switch object.Kind {
	case "IPAddressPool":
		return migration.Decode(object, &o.pools, &o.unknown)
	case "BGPPeer":
		return migration.Decode(object, &o.peers, &o.unknown)
	case "BGPAdvertisement":
		return migration.Decode(object, &o.advertisements, &o.unknown)
	case "BFDProfile":
		return migration.Decode(object, &o.profiles, &o.unknown)
	case "Community":
		return migration.Decode(object, &o.communities, &o.unknown)
	case "L2Advertisement":
		return migration.Decode(object, &o.layer2, &o.unknown)
	default:
		// Statuses and internal objects.
		return nil
	}
}
