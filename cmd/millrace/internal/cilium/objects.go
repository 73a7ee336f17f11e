// SPDX-License-Identifier: Apache-2.0

// Package cilium converts Cilium's objects of LB-IPAM, BGP and L2 announcements to those of Millrace.
package cilium

import (
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
)

// The converted fields (cilium.io/v2 and v2alpha1, up to Cilium 1.20); Cilium's types add 600 packages.

type ipPool struct {
	migration.Meta
	Spec struct {
		ServiceSelector   *metav1.LabelSelector `json:"serviceSelector"`
		AllowFirstLastIPs string                `json:"allowFirstLastIPs"`
		Blocks            []block               `json:"blocks"`
		// CIDRs is the name of Blocks before Cilium 1.15.
		CIDRs    []block `json:"cidrs"`
		Disabled bool    `json:"disabled"`
	} `json:"spec"`
}

type block struct {
	CIDR  string `json:"cidr"`
	Start string `json:"start"`
	Stop  string `json:"stop"`
}

type l2Policy struct {
	migration.Meta
	Spec struct {
		NodeSelector    *metav1.LabelSelector `json:"nodeSelector"`
		ServiceSelector *metav1.LabelSelector `json:"serviceSelector"`
		LoadBalancerIPs bool                  `json:"loadBalancerIPs"`
		ExternalIPs     bool                  `json:"externalIPs"`
		Interfaces      []string              `json:"interfaces"`
	} `json:"spec"`
}

type clusterConfig struct {
	migration.Meta
	Spec struct {
		NodeSelector *metav1.LabelSelector `json:"nodeSelector"`
		BGPInstances []instance            `json:"bgpInstances"`
	} `json:"spec"`
}

type instance struct {
	Name      string `json:"name"`
	LocalASN  *int64 `json:"localASN"`
	LocalPort *int32 `json:"localPort"`
	Peers     []peer `json:"peers"`
}

type peer struct {
	Name          string `json:"name"`
	PeerAddress   string `json:"peerAddress"`
	PeerASN       *int64 `json:"peerASN"`
	AutoDiscovery *struct {
		Mode           string `json:"mode"`
		DefaultGateway *struct {
			AddressFamily string `json:"addressFamily"`
		} `json:"defaultGateway"`
	} `json:"autoDiscovery"`
	// PeerConfigRef of v2alpha1 has a constant group and kind.
	PeerConfigRef *struct {
		Group string `json:"group"`
		Kind  string `json:"kind"`
		Name  string `json:"name"`
	} `json:"peerConfigRef"`
}

type peerConfig struct {
	migration.Meta
	Spec peerSettings `json:"spec"`
}

type peerSettings struct {
	Transport       *transport       `json:"transport"`
	Timers          *timers          `json:"timers"`
	AuthSecretRef   string           `json:"authSecretRef"`
	GracefulRestart *gracefulRestart `json:"gracefulRestart"`
	EBGPMultihop    *int32           `json:"ebgpMultihop"`
	Families        []family         `json:"families"`
}

type transport struct {
	// LocalPort is a field of v2alpha1.
	LocalPort       *int32 `json:"localPort"`
	PeerPort        *int32 `json:"peerPort"`
	SourceInterface string `json:"sourceInterface"`
}

type timers struct {
	ConnectRetryTimeSeconds *int32 `json:"connectRetryTimeSeconds"`
	HoldTimeSeconds         *int32 `json:"holdTimeSeconds"`
	KeepAliveTimeSeconds    *int32 `json:"keepAliveTimeSeconds"`
}

type gracefulRestart struct {
	Enabled            bool   `json:"enabled"`
	RestartTimeSeconds *int32 `json:"restartTimeSeconds"`
}

type family struct {
	AFI            string                `json:"afi"`
	SAFI           string                `json:"safi"`
	Advertisements *metav1.LabelSelector `json:"advertisements"`
}

type nodeOverride struct {
	migration.Meta
	Spec struct {
		BGPInstances []instanceOverride `json:"bgpInstances"`
	} `json:"spec"`
}

type instanceOverride struct {
	Name      string `json:"name"`
	RouterID  string `json:"routerID"`
	LocalPort *int32 `json:"localPort"`
	LocalASN  *int64 `json:"localASN"`
	Peers     []struct {
		Name         string `json:"name"`
		LocalAddress string `json:"localAddress"`
		LocalPort    *int32 `json:"localPort"`
	} `json:"peers"`
}

type advertisement struct {
	migration.Meta
	Spec struct {
		Advertisements []advertised `json:"advertisements"`
	} `json:"spec"`
}

type advertised struct {
	AdvertisementType string `json:"advertisementType"`
	Service           *struct {
		Addresses             []string `json:"addresses"`
		AggregationLengthIPv4 *int32   `json:"aggregationLengthIPv4"`
		AggregationLengthIPv6 *int32   `json:"aggregationLengthIPv6"`
	} `json:"service"`
	Interface *struct {
		Name string `json:"name"`
	} `json:"interface"`
	Selector   *metav1.LabelSelector `json:"selector"`
	Attributes *attributes           `json:"attributes"`
}

type attributes struct {
	Communities     *communities `json:"communities"`
	LocalPreference *int64       `json:"localPreference"`
}

type communities struct {
	Standard  []string `json:"standard"`
	WellKnown []string `json:"wellKnown"`
	Large     []string `json:"large"`
}

type peeringPolicy struct {
	migration.Meta
	Spec struct {
		NodeSelector   *metav1.LabelSelector `json:"nodeSelector"`
		VirtualRouters []virtualRouter       `json:"virtualRouters"`
	} `json:"spec"`
}

type virtualRouter struct {
	LocalASN              int64                 `json:"localASN"`
	ExportPodCIDR         *bool                 `json:"exportPodCIDR"`
	PodIPPoolSelector     *metav1.LabelSelector `json:"podIPPoolSelector"`
	ServiceSelector       *metav1.LabelSelector `json:"serviceSelector"`
	ServiceAdvertisements []string              `json:"serviceAdvertisements"`
	Neighbors             []neighbor            `json:"neighbors"`
}

type neighbor struct {
	timers

	PeerAddress              string           `json:"peerAddress"`
	PeerPort                 *int32           `json:"peerPort"`
	PeerASN                  int64            `json:"peerASN"`
	AuthSecretRef            string           `json:"authSecretRef"`
	EBGPMultihopTTL          *int32           `json:"eBGPMultihopTTL"`
	GracefulRestart          *gracefulRestart `json:"gracefulRestart"`
	Families                 []family         `json:"families"`
	AdvertisedPathAttributes []pathAttributes `json:"advertisedPathAttributes"`
}

type pathAttributes struct {
	attributes

	SelectorType string                `json:"selectorType"`
	Selector     *metav1.LabelSelector `json:"selector"`
}

// Objects are the Cilium objects of a cluster.
type Objects struct {
	pools          []ipPool
	layer2         []l2Policy
	clusters       []clusterConfig
	configs        []peerConfig
	overrides      []nodeOverride
	advertisements []advertisement
	policies       []peeringPolicy
	unknown        migration.Notes
}

// Read parses a stream of YAML or JSON objects. Kinds of other projects are an error; Cilium's kinds that
// do not concern load balancing are ignored.
func Read(r io.Reader) (*Objects, error) {
	objects := &Objects{}
	if err := migration.Read(r, "Cilium", objects.add); err != nil {
		return nil, err
	}
	return objects, nil
}

func (o *Objects) add(object migration.Object) error {
	if !strings.HasPrefix(object.APIVersion, "cilium.io/") {
		return object.ErrForeign()
	}
	switch object.Kind {
	case "CiliumLoadBalancerIPPool":
		return migration.Decode(object, &o.pools, &o.unknown)
	case "CiliumL2AnnouncementPolicy":
		return migration.Decode(object, &o.layer2, &o.unknown)
	case "CiliumBGPClusterConfig":
		return migration.Decode(object, &o.clusters, &o.unknown)
	case "CiliumBGPPeerConfig":
		return migration.Decode(object, &o.configs, &o.unknown)
	case "CiliumBGPNodeConfigOverride":
		return migration.Decode(object, &o.overrides, &o.unknown)
	case "CiliumBGPAdvertisement":
		return migration.Decode(object, &o.advertisements, &o.unknown)
	case "CiliumBGPPeeringPolicy":
		return migration.Decode(object, &o.policies, &o.unknown)
	default:
		// Network policies, endpoints and other kinds, some derived from the kinds above.
		return nil
	}
}
