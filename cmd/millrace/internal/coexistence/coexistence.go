// SPDX-License-Identifier: Apache-2.0

// Package coexistence detects other programs that serve load balancer Services or have BGP sessions with the
// routers. It is pure.
package coexistence

import (
	"fmt"
	"slices"
	"strings"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// Workload is a Deployment or DaemonSet.
type Workload struct {
	Namespace, Name string
	Labels          map[string]string
}

// Cluster is the input.
type Cluster struct {
	Workloads []Workload
	// Cilium are the settings of its ConfigMap; nil without Cilium.
	Cilium map[string]string
	// Kubelets and Server are versions such as v1.36.1.
	Kubelets []string
	Server   string
}

// Names of checks.
const (
	CheckVersion     = "kubernetes"
	CheckCoexistence = "rivals"
)

// advice is the remedy for other programs that serve Services without a class.
const advice = "omit --default-class, or disable it first (docs/install.md, Settings)"

// Find returns the findings about the cluster.
func Find(cluster *Cluster) []consoleapi.Finding {
	found := []consoleapi.Finding{version(cluster.Server)}
	for _, text := range slices.Concat(metalLB(cluster), frrK8s(cluster), serviceLB(cluster), cilium(cluster), kubeVIP(cluster)) {
		found = append(found, consoleapi.Finding{Check: CheckCoexistence, Level: consoleapi.LevelWarning, Message: text})
	}
	if cluster.Cilium["bpf-lb-acceleration"] == "native" || cluster.Cilium["bpf-lb-acceleration"] == "best-effort" {
		found = append(found, consoleapi.Finding{Check: CheckCoexistence, Level: consoleapi.LevelFault,
			Message: "Cilium has XDP programs on the nodes' uplinks (bpf-lb-acceleration), where Millrace's are required: set loadBalancer.acceleration=disabled"})
	}
	if len(found) == 1 {
		found = append(found, consoleapi.Finding{Check: CheckCoexistence, Level: consoleapi.LevelOK, Message: "no other load balancer"})
	}
	return found
}

// leastMinor is the minor version of Kubernetes 1.32, the first with the node's name in tokens.
const leastMinor = 32

func version(server string) consoleapi.Finding {
	var major, minor int
	if _, err := fmt.Sscanf(strings.TrimPrefix(server, "v"), "%d.%d", &major, &minor); err == nil && major == 1 && minor < leastMinor {
		return consoleapi.Finding{Check: CheckVersion, Level: consoleapi.LevelFault,
			Message: fmt.Sprintf("Kubernetes %s is too old: it must be 1.32 or later, which puts the node's name into tokens", server)}
	}
	return consoleapi.Finding{Check: CheckVersion, Level: consoleapi.LevelOK, Message: server}
}

func metalLB(cluster *Cluster) []string {
	for _, workload := range cluster.Workloads {
		if workload.Labels["app"] == "metallb" || workload.Labels["app.kubernetes.io/name"] == "metallb" {
			return []string{fmt.Sprintf("MetalLB (namespace %s) serves Services without a class, and its speakers may have sessions with the routers: "+
				"%s; docs/migrate.md describes the migration", workload.Namespace, advice)}
		}
	}
	return nil
}

// frrK8s returns a finding about frr-k8s, which other programs than MetalLB use, too.
func frrK8s(cluster *Cluster) []string {
	for _, workload := range cluster.Workloads {
		if workload.Labels["app.kubernetes.io/name"] == "frr-k8s" || workload.Labels["app"] == "frr-k8s" {
			return []string{fmt.Sprintf("frr-k8s (namespace %s) has BGP sessions from the nodes' addresses, for MetalLB and other FRRConfigurations. "+
				"A router accepts one session per address: see docs/migrate.md", workload.Namespace)}
		}
	}
	return nil
}

func serviceLB(cluster *Cluster) []string {
	var sets []string
	for _, workload := range cluster.Workloads {
		if _, is := workload.Labels["svccontroller.k3s.cattle.io/svcname"]; is {
			sets = append(sets, workload.Name)
		}
	}
	switch {
	case len(sets) > 0:
		return []string{fmt.Sprintf("servicelb of k3s serves %d Services, and all Services without a class: start its servers with --disable=servicelb, or %s",
			len(sets), advice)}
	case slices.ContainsFunc(cluster.Kubelets, func(version string) bool { return strings.Contains(version, "+k3s") }):
		return []string{"this is k3s, whose servicelb serves Services without a class unless its servers were started with " +
			"--disable=servicelb: check this, or " + advice}
	}
	return nil
}

func cilium(cluster *Cluster) (found []string) {
	if cluster.Cilium["enable-lb-ipam"] == "true" && cluster.Cilium["default-lb-service-ipam"] != "none" {
		found = append(found, "Cilium LB-IPAM assigns addresses to Services without a class, once it has a pool: set "+
			"defaultLBServiceIPAM=none, or "+advice)
	}
	if cluster.Cilium["enable-bgp-control-plane"] == "true" {
		found = append(found, "Cilium has BGP sessions from the nodes' addresses. A router accepts one session per address: use another "+
			"router, or another source address (spec.sourceAddress of the LBPeer; docs/bgp.md)")
	}
	return found
}

func kubeVIP(cluster *Cluster) []string {
	for _, workload := range cluster.Workloads {
		if strings.HasPrefix(workload.Name, "kube-vip") {
			return []string{fmt.Sprintf("kube-vip (%s in namespace %s) may serve Services without a class: %s", workload.Name, workload.Namespace, advice)}
		}
	}
	return nil
}
