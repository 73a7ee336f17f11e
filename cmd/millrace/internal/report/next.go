// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// next returns the missing steps before a Service is served.
func next(in *Input) []string {
	var steps []string
	if len(in.Pools) == 0 && !in.lacks("VIPPools") {
		steps = append(steps, "create a VIPPool with the addresses for Services (kubectl explain vippool.spec)")
	}
	if len(in.Peers) == 0 && !in.lacks("LBPeers") {
		steps = append(steps, "create an LBPeer for each router that the nodes announce to (kubectl explain lbpeer.spec)")
	}
	if len(in.Advertisements) == 0 && !in.lacks("VIPAdvertisements") {
		steps = append(steps, "create a VIPAdvertisement that selects VIPs and peers (kubectl explain vipadvertisement.spec)")
	}
	if len(in.VIPs) == 0 && !slices.ContainsFunc(in.Services, func(service corev1.Service) bool { return ours(&service) }) {
		steps = append(steps, "create a Service of type LoadBalancer with loadBalancerClass "+millracev1beta1.Class)
	}
	return steps
}
