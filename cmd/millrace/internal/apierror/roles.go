// SPDX-License-Identifier: Apache-2.0

package apierror

import (
	"slices"
	"strings"
)

type grant struct {
	role string
	// own is true for a Role in Millrace's namespace, and false for a ClusterRole.
	own              bool
	group            string
	resources, verbs []string
}

var read = []string{"get", "list", "watch"}

// grants are the rules in config/rbac and config/liveapi, then those needed of Kubernetes' role view.
var grants = []grant{
	{"millrace-viewer", false, "millrace.io", []string{"vippools", "vips", "lbpeers", "vipadvertisements", "viproutes", "lbnodes", "lbnodereports"}, read},
	{"millrace-viewer", false, "live.millrace.io", []string{"vipannouncements", "bgpsessions"}, read},
	{"millrace-viewer", false, "", []string{"services", "namespaces"}, read},
	{"millrace-viewer", false, "discovery.k8s.io", []string{"endpointslices"}, read},
	{"millrace-viewer", false, "", []string{"configmaps"}, []string{"get"}},
	{"millrace-viewer", false, "networking.k8s.io", []string{"ingressclasses", "ingresses"}, read},
	{"millrace-viewer", false, "gateway.networking.k8s.io", []string{
		"gatewayclasses", "gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes", "tcproutes", "udproutes",
		"referencegrants", "backendtlspolicies",
	}, read},
	{"millrace-live-viewer", false, "live.millrace.io", []string{"servicetraffic", "flows", "drops"}, read},
	{"millrace-viewer", true, "", []string{"pods"}, read},
	{"millrace-viewer", true, "apps", []string{"deployments"}, []string{"get"}},
	{"millrace-tracer", true, "", []string{"pods/exec"}, []string{"get", "create"}},
	{builtin, false, "", []string{"pods", "events"}, read},
	{builtin, false, "apps", []string{"daemonsets", "deployments"}, read},
}

// builtin is Kubernetes' ClusterRole that permits reading most objects of a namespace.
const builtin = "view"

// role names the first role that permits a request, or "".
func (d denied) role(installed string) string {
	for _, of := range grants {
		permits := of.group == d.group && slices.Contains(of.resources, d.resource) && slices.Contains(of.verbs, d.verb)
		switch {
		case !permits || of.own && d.namespace != installed:
		case of.own:
			return "Role " + of.role + " of namespace " + installed
		case d.namespace != "":
			// The role includes those of Millrace for reading.
			return "ClusterRole " + builtin + ", bound in namespace " + d.namespace + ","
		default:
			return "ClusterRole " + of.role
		}
	}
	return ""
}

// Omission describes the objects that the user may not list, without a final period, or returns "". sole is
// the only namespace that was read; empty: all were.
func Omission(sole string, omitted []string) string {
	var parts []string
	if sole != "" {
		parts = append(parts, "objects of other namespaces than "+sole)
	}
	if parts = append(parts, omitted...); len(parts) == 0 {
		return ""
	}
	return "Left out: " + strings.Join(parts, ", ") + ". ClusterRole millrace-viewer, bound for the whole cluster, permits them"
}
