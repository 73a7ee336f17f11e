// SPDX-License-Identifier: Apache-2.0

package cilium

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
)

const (
	// Cilium's defaults in seconds are written into each object, so they do not show a user's choice.
	defaultHoldTime         = 90
	defaultConnectRetryTime = 120
	// longestConnectRetryTime is the maximum of an LBPeer in seconds.
	longestConnectRetryTime = 600
	// secretsNamespace is the default of the Helm value for the namespace of passwords.
	secretsNamespace = "kube-system"
)

// session is a BGP session of some nodes with a router, merged from all objects.
type session struct {
	note         noteFunc
	name         []string
	nodes        *metav1.LabelSelector
	localASN     int64
	peer         *peer
	settings     *peerSettings
	noteSettings noteFunc
	overrides    []sessionOverride
}

type sessionOverride struct {
	node, address string
	localASN      int64
}

func (c *converter) cluster(from *clusterConfig) {
	note := c.noteFunc(kindCluster, from.Metadata.Name)
	for i := range from.Spec.BGPInstances {
		instance := &from.Spec.BGPInstances[i]
		names := []string{from.Metadata.Name}
		if len(from.Spec.BGPInstances) > 1 {
			names = append(names, instance.Name)
		}
		if instance.LocalPort != nil && *instance.LocalPort != 179 {
			note("instance %s listens on port %d, Millrace on port 179", instance.Name, *instance.LocalPort)
		}
		for j := range instance.Peers {
			peer := &instance.Peers[j]
			s := &session{
				note: note, name: append(slices.Clone(names), peer.Name), nodes: unlessEmpty(from.Spec.NodeSelector),
				peer: peer, noteSettings: note, settings: &peerSettings{}, overrides: c.overrides(instance, peer),
			}
			if instance.LocalASN != nil {
				s.localASN = *instance.LocalASN
			}
			if peer.PeerConfigRef != nil {
				c.settings(s, peer.PeerConfigRef.Name)
			}
			c.announce(s, c.session(s))
		}
	}
}

func (c *converter) settings(s *session, name string) {
	i := slices.IndexFunc(c.objects.configs, func(config peerConfig) bool { return config.Metadata.Name == name })
	if i < 0 {
		s.note("peer %s: there is no CiliumBGPPeerConfig %s", s.peer.Name, name)
		return
	}
	c.taken[kindConfig+"/"+name] = true
	s.settings, s.noteSettings = &c.objects.configs[i].Spec, c.noteFunc(kindConfig, name)
}

// overrides returns the overrides of nodes, whose objects have the nodes' names.
func (c *converter) overrides(instance *instance, peer *peer) (all []sessionOverride) {
	for i := range c.objects.overrides {
		node := c.objects.overrides[i].Metadata.Name
		note := c.noteFunc(kindOverride, node)
		for _, override := range c.objects.overrides[i].Spec.BGPInstances {
			if override.Name != instance.Name {
				continue
			}
			c.taken[kindOverride+"/"+node+"/"+instance.Name] = true
			if override.RouterID != "" {
				note("the router id %s has no equivalent: a node's router id is its IPv4 address", override.RouterID)
			}
			if override.LocalPort != nil && *override.LocalPort != 179 {
				note("instance %s listens on port %d, Millrace on port 179", instance.Name, *override.LocalPort)
			}
			one := sessionOverride{node: node}
			if override.LocalASN != nil {
				one.localASN = *override.LocalASN
			}
			for _, p := range override.Peers {
				if p.Name != peer.Name {
					continue
				}
				one.address = p.LocalAddress
				if p.LocalPort != nil {
					note("peer %s: the source port %d has no equivalent", p.Name, *p.LocalPort)
				}
			}
			if one.address != "" || one.localASN != 0 {
				all = append(all, one)
			}
		}
	}
	return all
}

func (c *converter) session(s *session) (names []string) {
	to := migration.NewPeer(c.name("LBPeer", s.name...))
	to.Spec.Router = s.router()
	if to.Spec.Router == (millracev1beta1.Router{}) {
		s.note("peer %s has no address: it is left out", s.peer.Name)
		return nil
	}
	to.Spec.LocalASN, to.Spec.NodeSelector = s.localASN, s.nodes
	if s.peer.PeerASN != nil && *s.peer.PeerASN != 0 {
		to.Spec.PeerASN = *s.peer.PeerASN
	} else {
		to.Spec.DynamicASN = millracev1beta1.ExternalASN
		s.note("peer %s accepts any AS number of the router, dynamicASN External any except the nodes' own", s.peer.Name)
	}
	s.apply(&to.Spec)
	for _, override := range s.overrides {
		of := migration.NewPeer(c.name("LBPeer", to.Name, override.node))
		to.Spec.DeepCopyInto(&of.Spec)
		of.Spec.NodeSelector = withNodes(s.nodes, metav1.LabelSelectorOpIn, override.node)
		if override.localASN != 0 {
			of.Spec.LocalASN = override.localASN
		}
		if override.address != "" {
			of.Spec.SourceAddress, of.Spec.SourceInterface = override.address, ""
		}
		c.result.Peers = append(c.result.Peers, of)
		names = append(names, of.Name)
	}
	if to.Spec.LocalASN == 0 {
		s.note("peer %s: its instance has no localASN, so only nodes with an override have a session", s.peer.Name)
		return names
	}
	if len(s.overrides) > 0 {
		nodes := make([]string, 0, len(s.overrides))
		for _, override := range s.overrides {
			nodes = append(nodes, override.node)
		}
		to.Spec.NodeSelector = withNodes(s.nodes, metav1.LabelSelectorOpNotIn, nodes...)
	}
	c.result.Peers = append(c.result.Peers, to)
	return append(names, to.Name)
}

// withNodes restricts a selector to nodes, or to all other nodes.
func withNodes(selector *metav1.LabelSelector, operator metav1.LabelSelectorOperator, nodes ...string) *metav1.LabelSelector {
	narrowed := &metav1.LabelSelector{}
	if selector != nil {
		narrowed = selector.DeepCopy()
	}
	narrowed.MatchExpressions = append(narrowed.MatchExpressions, metav1.LabelSelectorRequirement{
		Key: corev1.LabelHostname, Operator: operator, Values: nodes,
	})
	return narrowed
}

// router returns the zero value if the peer has no address.
func (s *session) router() millracev1beta1.Router {
	discovery := s.peer.AutoDiscovery
	switch {
	case s.peer.PeerAddress != "":
		return routerAt(s.peer.PeerAddress, s.note)
	case discovery == nil || discovery.DefaultGateway == nil:
		return millracev1beta1.Router{}
	case discovery.DefaultGateway.AddressFamily == "ipv6":
		return millracev1beta1.Router{Gateway: millracev1beta1.FamilyIPv6}
	default:
		return millracev1beta1.Router{Gateway: millracev1beta1.FamilyIPv4}
	}
}

func routerAt(address string, note noteFunc) millracev1beta1.Router {
	at, err := netip.ParseAddr(address)
	if err != nil {
		return millracev1beta1.Router{Address: address}
	}
	if at.IsLinkLocalUnicast() && at.Is6() && at.Zone() == "" {
		note("the router %s is link-local: set router.interface, too", address)
	}
	return millracev1beta1.Router{Address: at.WithZone("").String(), Interface: at.Zone()}
}

func (s *session) apply(to *millracev1beta1.LBPeerSpec) {
	settings, note := s.settings, s.noteSettings
	if transport := settings.Transport; transport != nil {
		if transport.PeerPort != nil {
			to.PeerPort = *transport.PeerPort
		}
		if transport.LocalPort != nil && *transport.LocalPort != 0 {
			note("the source port %d has no equivalent", *transport.LocalPort)
		}
		to.SourceInterface = transport.SourceInterface
	}
	if settings.Timers != nil {
		settings.Timers.apply(to, note)
	}
	if settings.AuthSecretRef != "" {
		to.PasswordSecretRef = &millracev1beta1.SecretReference{Name: settings.AuthSecretRef}
		note("copy its Secret %s from namespace %s (bgpControlPlane.secretsNamespace) to namespace %s",
			settings.AuthSecretRef, secretsNamespace, millracev1beta1.BGPNamespace)
	}
	s.hops(to)
	switch restart := settings.GracefulRestart; {
	case restart == nil:
		note("graceful restart is disabled in Cilium and enabled here, unless gracefulRestart.enabled is false")
	case !restart.Enabled:
		to.GracefulRestart = &millracev1beta1.GracefulRestart{Enabled: &restart.Enabled}
	case restart.RestartTimeSeconds != nil:
		to.GracefulRestart = &millracev1beta1.GracefulRestart{RestartTime: seconds(*restart.RestartTimeSeconds)}
	}
	for _, family := range settings.Families {
		if known, ok := family.known(); ok {
			to.Families = append(to.Families, known)
		} else {
			note("the family %s/%s has no equivalent", family.AFI, family.SAFI)
		}
	}
	slices.Sort(to.Families)
	to.Families = slices.Compact(to.Families)
}

// hops converts the multihop TTL, which in Cilium applies to external sessions only.
func (s *session) hops(to *millracev1beta1.LBPeerSpec) {
	hops := s.settings.EBGPMultihop
	switch {
	case to.PeerASN != 0 && to.PeerASN == to.LocalASN:
		s.note("peer %s is in the nodes' own AS: set multihopTTL if it is not directly connected", s.peer.Name)
	case hops != nil && *hops > 1:
		to.MultihopTTL = hops
	}
}

func (t *timers) apply(to *millracev1beta1.LBPeerSpec, note noteFunc) {
	hold := int32(defaultHoldTime)
	if t.HoldTimeSeconds != nil {
		hold = *t.HoldTimeSeconds
		to.HoldTime = seconds(hold)
	}
	if keepalive := t.KeepAliveTimeSeconds; keepalive != nil {
		if *keepalive <= hold/3 {
			to.KeepaliveTime = seconds(*keepalive)
		} else {
			note("keepAliveTimeSeconds %d is more than a third of holdTimeSeconds %d: reduced to a third", *keepalive, hold)
		}
	}
	retry := t.ConnectRetryTimeSeconds
	if retry == nil || *retry == defaultConnectRetryTime {
		return
	}
	if *retry > longestConnectRetryTime {
		note("connectRetryTimeSeconds %d exceeds the maximum %d", *retry, longestConnectRetryTime)
	}
	to.ConnectRetryTime = seconds(min(*retry, longestConnectRetryTime))
}

func seconds(number int32) *metav1.Duration {
	return &metav1.Duration{Duration: time.Duration(number) * time.Second}
}

func (f *family) known() (millracev1beta1.AddressFamily, bool) {
	switch {
	case f.SAFI != "unicast":
		return "", false
	case f.AFI == "ipv4":
		return millracev1beta1.FamilyIPv4, true
	case f.AFI == "ipv6":
		return millracev1beta1.FamilyIPv6, true
	default:
		return "", false
	}
}
