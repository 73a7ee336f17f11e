// SPDX-License-Identifier: Apache-2.0

// Package metallb turns MetalLB's objects into those of Millrace that mean the same.
package metallb

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// The fields of MetalLB's kinds that mean something here (metallb.io/v1beta1, v1beta2 of BGPPeer).

type addressPool struct {
	meta
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
	meta
	Spec struct {
		MyASN                  int64                  `json:"myASN"`
		PeerASN                int64                  `json:"peerASN"`
		DynamicASN             string                 `json:"dynamicASN"`
		PeerAddress            string                 `json:"peerAddress"`
		Interface              string                 `json:"interface"`
		SourceAddress          string                 `json:"sourceAddress"`
		PeerPort               int32                  `json:"peerPort"`
		HoldTime               *metav1.Duration       `json:"holdTime"`
		KeepaliveTime          *metav1.Duration       `json:"keepaliveTime"`
		ConnectTime            *metav1.Duration       `json:"connectTime"`
		RouterID               string                 `json:"routerID"`
		NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors"`
		Password               string                 `json:"password"`
		PasswordSecret         *struct{ Name string } `json:"passwordSecret"`
		BFDProfile             string                 `json:"bfdProfile"`
		EBGPMultiHop           bool                   `json:"ebgpMultiHop"`
		VRF                    string                 `json:"vrf"`
		DualStackAddressFamily bool                   `json:"dualStackAddressFamily"`
	} `json:"spec"`
}

type bgpAdvertisement struct {
	meta
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
	meta
	Spec struct {
		ReceiveInterval  *uint32 `json:"receiveInterval"`
		TransmitInterval *uint32 `json:"transmitInterval"`
		DetectMultiplier *uint32 `json:"detectMultiplier"`
		EchoMode         bool    `json:"echoMode"`
		PassiveMode      bool    `json:"passiveMode"`
		MinimumTTL       *uint32 `json:"minimumTtl"`
	} `json:"spec"`
}

type community struct {
	meta
	Spec struct {
		Communities []struct{ Name, Value string } `json:"communities"`
	} `json:"spec"`
}

type l2Advertisement struct {
	meta
	Spec struct {
		IPAddressPools         []string               `json:"ipAddressPools"`
		IPAddressPoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors"`
		NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors"`
		ServiceSelectors       []metav1.LabelSelector `json:"serviceSelectors"`
		Interfaces             []string               `json:"interfaces"`
	} `json:"spec"`
}

type meta struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
}

// Objects are those of MetalLB that a cluster has.
type Objects struct {
	pools          []addressPool
	peers          []bgpPeer
	advertisements []bgpAdvertisement
	profiles       []bfdProfile
	communities    []community
	layer2         []l2Advertisement
}

// Read reads objects as YAML or JSON, as kubectl prints them: one after another, or lists. Other
// kinds than those of MetalLB are an error.
func Read(r io.Reader) (*Objects, error) {
	objects := &Objects{}
	decoder := yaml.NewYAMLOrJSONDecoder(r, 4096)
	for {
		var object map[string]any
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read MetalLB's objects: %w", err)
		}
		if err := objects.add(object); err != nil {
			return nil, err
		}
	}
}

func (o *Objects) add(object map[string]any) error {
	if len(object) == 0 {
		return nil
	}
	kind, _ := object["kind"].(string)
	if items, isList := object["items"].([]any); isList {
		for _, item := range items {
			if one, ok := item.(map[string]any); ok {
				if err := o.add(one); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if version, _ := object["apiVersion"].(string); !strings.HasPrefix(version, "metallb.io/") {
		return fmt.Errorf("read MetalLB's objects: %s %q is none", version, kind)
	}
	switch kind {
	case "IPAddressPool":
		return decode(object, &o.pools)
	case "BGPPeer":
		return decode(object, &o.peers)
	case "BGPAdvertisement":
		return decode(object, &o.advertisements)
	case "BFDProfile":
		return decode(object, &o.profiles)
	case "Community":
		return decode(object, &o.communities)
	case "L2Advertisement":
		return decode(object, &o.layer2)
	default:
		// Statuses, and what is internal to it.
		return nil
	}
}

func decode[T any](object map[string]any, all *[]T) error {
	var one T
	raw, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(raw, &one)
	}
	if err != nil {
		return fmt.Errorf("read MetalLB's %v: %w", object["kind"], err)
	}
	*all = append(*all, one)
	return nil
}
