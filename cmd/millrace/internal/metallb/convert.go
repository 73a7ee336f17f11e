// SPDX-License-Identifier: Apache-2.0

package metallb

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/frrk8s"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
)

const (
	// firstPriority is that of MetalLB's lowest, preferred number; pools without a number come last.
	firstPriority = 1_000_000
	// maxTTL is the TTL of MetalLB's multihop sessions.
	maxTTL = 255
	// profileInterval is MetalLB's default interval in milliseconds.
	profileInterval = 300
)

// Convert returns equivalent objects of Millrace. Of several selectors, any of which may match in MetalLB,
// it uses the first, so that no object selects more than before.
func Convert(objects *Objects) migration.Result {
	c := &converter{objects: objects}
	c.result.Notes = objects.unknown
	for i := range objects.pools {
		c.pool(&objects.pools[i])
	}
	for i := range objects.peers {
		c.peer(&objects.peers[i])
	}
	for i := range objects.advertisements {
		c.advertisement(&objects.advertisements[i])
	}
	for i := range objects.layer2 {
		c.layer2(&objects.layer2[i])
	}
	for i := range objects.frr {
		c.frr(&objects.frr[i])
	}
	return c.result
}

type converter struct {
	objects *Objects
	result  migration.Result
}

func (c *converter) note(kind string, of metav1.ObjectMeta, format string, args ...any) {
	c.result.Notes.Add(kind, of.Name, format, args...)
}

func (c *converter) pool(from *addressPool) {
	note := func(format string, args ...any) { c.note("IPAddressPool", from.Metadata, format, args...) }
	to := migration.NewPool(from.Metadata.Name)
	to.Spec.AutoAssign = from.Spec.AutoAssign
	for _, addresses := range from.Spec.Addresses {
		to.Spec.Addresses = append(to.Spec.Addresses, migration.Masked(addresses))
	}
	if from.Spec.AvoidBuggyIPs {
		to.Spec.Avoid = []millracev1beta1.AvoidedAddress{millracev1beta1.AvoidNetwork, millracev1beta1.AvoidBroadcast}
		note("avoidBuggyIPs excludes all addresses that end with .0 or .255, but avoid the first and last address of each network: " +
			"add others to reserved")
	}
	if allocation := from.Spec.ServiceAllocation; allocation != nil {
		if allocation.Priority > 0 {
			to.Spec.Priority = int32(max(firstPriority-allocation.Priority, 1))
		}
		to.Spec.ServiceSelector = first(allocation.ServiceSelectors, note, "serviceSelectors")
		to.Spec.NamespaceSelector = first(allocation.NamespaceSelectors, note, "namespaceSelectors")
		if len(allocation.Namespaces) > 0 {
			if to.Spec.NamespaceSelector != nil {
				note("namespaces and namespaceSelectors cannot be combined: only the namespaces are converted")
			}
			to.Spec.NamespaceSelector = migration.Namespaces(metav1.LabelSelectorOpIn, allocation.Namespaces...)
		}
	}
	c.result.Pools = append(c.result.Pools, to)
}

func first(selectors []metav1.LabelSelector, note func(string, ...any), field string) *metav1.LabelSelector {
	if len(selectors) == 0 {
		return nil
	}
	if len(selectors) > 1 {
		note("only the first of %d %s is converted: create an object for each of the others", len(selectors), field)
	}
	return &selectors[0]
}

func (c *converter) peer(from *bgpPeer) {
	note := func(format string, args ...any) { c.note("BGPPeer", from.Metadata, format, args...) }
	spec := &from.Spec
	to := migration.NewPeer(from.Metadata.Name)
	to.Spec = millracev1beta1.LBPeerSpec{
		Router:   millracev1beta1.Router{Address: spec.PeerAddress, Interface: spec.Interface},
		LocalASN: spec.MyASN, PeerASN: spec.PeerASN, PeerPort: spec.PeerPort, SourceAddress: spec.SourceAddress,
		HoldTime: spec.HoldTime, KeepaliveTime: spec.KeepaliveTime, ConnectRetryTime: spec.ConnectTime,
		NodeSelector: first(spec.NodeSelectors, note, "nodeSelectors"),
	}
	switch spec.DynamicASN {
	case "internal":
		to.Spec.DynamicASN = millracev1beta1.InternalASN
	case "external":
		to.Spec.DynamicASN = millracev1beta1.ExternalASN
	}
	if spec.EBGPMultiHop {
		hops := int32(maxTTL)
		to.Spec.MultihopTTL = &hops
	}
	to.Spec.ExtendedNextHop = spec.PeerAddress == ""
	if spec.DualStackAddressFamily || to.Spec.ExtendedNextHop {
		to.Spec.Families = []millracev1beta1.AddressFamily{millracev1beta1.FamilyIPv4, millracev1beta1.FamilyIPv6}
	}
	switch {
	case spec.PasswordSecret != nil && spec.PasswordSecret.Name != "":
		to.Spec.PasswordSecretRef = &millracev1beta1.SecretReference{Name: spec.PasswordSecret.Name}
		note("copy its Secret %s to namespace %s", spec.PasswordSecret.Name, millracev1beta1.BGPNamespace)
	case spec.Password != "":
		to.Spec.PasswordSecretRef = &millracev1beta1.SecretReference{Name: from.Metadata.Name}
		note("create a Secret %s in namespace %s with its password", from.Metadata.Name, millracev1beta1.BGPNamespace)
	}
	if spec.BFDProfile != "" {
		to.Spec.BFD = c.bfd(spec.BFDProfile, note)
	}
	if spec.VRF != "" {
		note("the VRF %s has no equivalent", spec.VRF)
	}
	if spec.RouterID != "" {
		note("the router id %s has no equivalent: a node's router id is its IPv4 address", spec.RouterID)
	}
	c.result.Peers = append(c.result.Peers, to)
}

func (c *converter) bfd(name string, note func(string, ...any)) *millracev1beta1.BFD {
	i := slices.IndexFunc(c.objects.profiles, func(profile bfdProfile) bool { return profile.Metadata.Name == name })
	if i < 0 {
		note("there is no BFDProfile %s: bfd has Millrace's default intervals", name)
		return &millracev1beta1.BFD{}
	}
	spec := &c.objects.profiles[i].Spec
	if spec.EchoMode || spec.PassiveMode || spec.MinimumTTL != nil {
		note("echoMode, passiveMode and minimumTtl of BFDProfile %s have no equivalent", name)
	}
	interval := func(milliseconds *uint32) *metav1.Duration {
		value := uint32(profileInterval)
		if milliseconds != nil {
			value = *milliseconds
		}
		return &metav1.Duration{Duration: time.Duration(value) * time.Millisecond}
	}
	bfd := &millracev1beta1.BFD{TransmitInterval: interval(spec.TransmitInterval), ReceiveInterval: interval(spec.ReceiveInterval)}
	if spec.DetectMultiplier != nil {
		bfd.DetectMultiplier = int32(*spec.DetectMultiplier)
	}
	return bfd
}

func (c *converter) advertisement(from *bgpAdvertisement) {
	note := func(format string, args ...any) { c.note("BGPAdvertisement", from.Metadata, format, args...) }
	spec := &from.Spec
	to := migration.NewAdvertisement(from.Metadata.Name)
	to.Spec = millracev1beta1.VIPAdvertisementSpec{
		Peers: spec.Peers, NodeSelector: first(spec.NodeSelectors, note, "nodeSelectors"),
		AggregationLength: unless(spec.AggregationLength, 32), AggregationLengthV6: unless(spec.AggregationLengthV6, 128),
	}
	pools, selected := c.pools(spec.IPAddressPools, spec.IPAddressPoolSelectors, note)
	if selected && len(pools) == 0 {
		note("it selects no IPAddressPool, so it is left out")
		return
	}
	to.Spec.Pools = pools
	if spec.LocalPref != 0 {
		to.Spec.LocalPreference = &spec.LocalPref
	}
	for _, community := range spec.Communities {
		value, known := c.community(community)
		if !known {
			note("no Community defines %q: it is left out", community)
			continue
		}
		to.Spec.Communities = append(to.Spec.Communities, strings.TrimPrefix(value, "large:"))
	}
	c.result.Advertisements = append(c.result.Advertisements, to)
}

// layer2 adds a suffix to a name that a BGPAdvertisement also has.
func (c *converter) layer2(from *l2Advertisement) {
	note := func(format string, args ...any) { c.note("L2Advertisement", from.Metadata, format, args...) }
	spec := &from.Spec
	pools, selected := c.pools(spec.IPAddressPools, spec.IPAddressPoolSelectors, note)
	if selected && len(pools) == 0 {
		note("it selects no IPAddressPool, so it is left out")
		return
	}
	to := migration.NewAdvertisement(from.Metadata.Name)
	if slices.ContainsFunc(c.objects.advertisements, func(a bgpAdvertisement) bool { return a.Metadata.Name == to.Name }) {
		to.Name += "-l2"
	}
	to.Spec = millracev1beta1.VIPAdvertisementSpec{
		Pools: pools, NodeSelector: first(spec.NodeSelectors, note, "nodeSelectors"),
		L2: &millracev1beta1.L2Advertisement{Interfaces: spec.Interfaces},
	}
	if len(spec.ServiceSelectors) > 0 {
		to.Spec.ServiceSelector = first(spec.ServiceSelectors, note, "serviceSelectors")
	}
	if len(spec.Interfaces) == 0 {
		note("MetalLB answers on all interfaces, l2 on the uplinks whose network contains the VIP: specify others")
	}
	c.result.Advertisements = append(c.result.Advertisements, to)
}

// frr adds notes about an FRRConfiguration that was not written by MetalLB's speakers (mode frr-k8s).
func (c *converter) frr(from *frrk8s.Configuration) {
	if from.BySpeaker() {
		return
	}
	note := func(format string, args ...any) { c.note(frrk8s.Kind, from.Metadata, format, args...) }
	note("it does not belong to MetalLB and has no equivalent: frr-k8s must stay on its nodes")
	have := from.Peers()
	for i := range c.objects.peers {
		spec := &c.objects.peers[i].Spec
		if slices.Contains(have, frrk8s.NewPeer(spec.VRF, spec.PeerAddress)) {
			note("it has router %s of BGPPeer %s, which accepts one session per address: frr-k8s would keep it. "+
				"Remove the neighbor, or use another address for the LBPeer (docs/platforms.md, A CNI that peers with the router already)",
				spec.PeerAddress, c.objects.peers[i].Metadata.Name)
		}
	}
	if from.Spec.Raw.Config != "" {
		note("its rawConfig is not evaluated: verify that it has no session with these routers")
	}
}

func unless(number *int32, standard int32) *int32 {
	if number == nil || *number == standard {
		return nil
	}
	return number
}

// pools returns the names of pools that are named or selected; if selected is false, all are meant.
func (c *converter) pools(names []string, selectors []metav1.LabelSelector, note func(string, ...any)) (all []string, selected bool) {
	all = slices.Clone(names)
	for i := range selectors {
		selector, err := metav1.LabelSelectorAsSelector(&selectors[i])
		if err != nil {
			note("ipAddressPoolSelectors: %v", err)
			continue
		}
		for _, pool := range c.objects.pools {
			if selector.Matches(labels.Set(pool.Metadata.Labels)) {
				all = append(all, pool.Metadata.Name)
			}
		}
	}
	if len(selectors) > 0 {
		note("pools are listed by name instead of a selector: add later pools, too")
	}
	slices.Sort(all)
	return slices.Compact(all), len(names)+len(selectors) > 0
}

func (c *converter) community(name string) (value string, known bool) {
	if strings.Contains(name, ":") {
		return name, true
	}
	for _, object := range c.objects.communities {
		for _, alias := range object.Spec.Communities {
			if alias.Name == name {
				return alias.Value, true
			}
		}
	}
	return "", false
}
