// SPDX-License-Identifier: Apache-2.0

package kubevip

import (
	"maps"
	"slices"
	"strings"
)

type environment struct{ values map[string]string }

var used = []string{
	"bgp_as", "bgp_enable", "bgp_hold_time", "bgp_keepalive_interval", "bgp_multihop", "bgp_peeraddress", "bgp_peeras",
	"bgp_peerpass", "bgp_peers", "bgp_sourceif", "bgp_sourceip", "cp_enable", "lb_class_name", "lb_class_only",
	"mpbgp_ipv4", "mpbgp_ipv6", "mpbgp_nexthop", "svc_enable", "vip_arp", "vip_interface", "vip_servicesinterface",
}

// withoutCounterpart have no equivalent; agents choose their router id themselves.
var withoutCounterpart = []string{
	"bgp_attach_ip_to_interface", "bgp_routerid", "bgp_routerinterface", "dhcp_mode", "enable_service_security",
	"enable_upnp", "mirror_dest_interface", "svc_namespace", "vip_ddns", "vip_routingtable", "vip_wireguard", "zebra_enable",
}

// itsOwn are the prefixes of variables for kube-vip's own operation or the control plane.
var itsOwn = []string{
	"address", "annotation", "backend_health_check_", "config_file", "control_plane_health_check_", "cp_", "debounce_time",
	"dhcp_backoff_", "disable_service_updates", "dns_mode", "egress_", "enable_endpoints", "enable_node_labeling", "health_check_port",
	"instance_name", "iptables_backend", "k8s_config_file", "kubernetes_addr", "lb_class_legacy_handling", "lb_enable",
	"lb_fwdmethod", "lb_port", "per_service_election_", "port", "prometheus_server", "svc_election", "svc_leasename",
	"vip_address", "vip_allow_interface_not_up", "vip_arprate", "vip_cidr", "vip_cleanroutingtable", "vip_interfaceloglobal",
	"vip_leader", "vip_lease", "vip_loglevel", "vip_loseleadership", "vip_nodename", "vip_preserve_", "vip_renewdeadline",
	"vip_retryperiod", "vip_routingprotocol", "vip_routingtableid", "vip_routingtabletype", "vip_singlenode", "vip_skipdad",
	"vip_startleader", "vip_subnet", "zebra_",
}

// environment returns the variables of the first container with settings of kube-vip.
func (s *speaker) environment(note noteFunc) (*environment, bool) {
	for i := range s.spec.Containers {
		env := &environment{values: map[string]string{}}
		found := false
		for _, variable := range s.spec.Containers[i].Env {
			env.values[variable.Name] = variable.Value
			found = found || slices.Contains(used, variable.Name)
			if variable.ValueFrom != nil && slices.Contains(used, variable.Name) {
				note("the value of %s is a reference: convert it manually", variable.Name)
			}
		}
		if found {
			return env, true
		}
	}
	return nil, false
}

// unknown returns the variables missing in these lists.
func (e *environment) unknown() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(e.values)), func(name string) bool {
		lower := strings.ToLower(name)
		return slices.Contains(used, name) || slices.Contains(withoutCounterpart, name) ||
			slices.ContainsFunc(itsOwn, func(prefix string) bool { return strings.HasPrefix(lower, prefix) })
	})
}
