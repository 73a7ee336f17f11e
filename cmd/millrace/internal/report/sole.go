// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
)

// AddVIPs derives the VIPs from the status of Services if the user may not list VIPs.
func (in *Input) AddVIPs() {
	if !in.lacks("VIPs") {
		return
	}
	at := map[string]int{}
	for i := range in.Services {
		service := &in.Services[i]
		if !ours(service) {
			continue
		}
		claim := millracev1beta1.VIPClaim{Namespace: service.Namespace, Name: service.Name, UID: string(service.UID)}
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			address, err := netip.ParseAddr(ingress.IP)
			if err != nil {
				continue
			}
			name := millracev1beta1.VIPName(address)
			known, is := at[name]
			if !is {
				known = len(in.VIPs)
				at[name] = known
				in.VIPs = append(in.VIPs, millracev1beta1.VIP{
					ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: millracev1beta1.VIPSpec{Address: ingress.IP},
				})
			}
			in.VIPs[known].Spec.Claims = append(in.VIPs[known].Spec.Claims, claim)
		}
	}
}

// omission is one sentence about the objects that the user may not list, or "".
func (in *Input) omission() string {
	text := apierror.Omission(in.Sole, in.Omitted)
	if text == "" {
		return ""
	}
	if in.lacks("Pods") {
		text += ", and Role millrace-viewer of namespace " + in.Namespace + " the pods"
	}
	return text + "."
}

func countNodes(traffic *livev1alpha1.ServiceTrafficList) map[types.NamespacedName]livev1alpha1.NodeCount {
	counts := map[types.NamespacedName]livev1alpha1.NodeCount{}
	if traffic == nil || traffic.AnsweredNodes == 0 {
		return counts
	}
	for i := range traffic.Items {
		item := &traffic.Items[i]
		counts[types.NamespacedName{Namespace: item.Namespace, Name: item.Name}] = item.Nodes
	}
	return counts
}

func (l *lookup) announcing(claim millracev1beta1.VIPClaim) (announcing *int32, nodes int32) {
	count, known := l.nodesOf[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}]
	if !known {
		return nil, 0
	}
	return &count.Announcing, count.Total
}

// unannounced reports whether no node announces any of the VIP's Services, if that is known.
func (v VIP) unannounced() bool {
	known := func(service Service) bool { return service.Announcing != nil }
	return slices.ContainsFunc(v.Services, known) && !slices.ContainsFunc(v.Services, func(service Service) bool {
		return known(service) && *service.Announcing > 0
	})
}

// unassigned returns why requested Services have no VIP.
func (l *lookup) unassigned() []Problem {
	var problems []Problem
	waiting := l.waiting()
	for _, name := range l.in.Unassigned {
		at := slices.IndexFunc(waiting, func(p Problem) bool { return p.Namespace == name.Namespace && p.Name == name.Name })
		if at >= 0 {
			problems = append(problems, waiting[at])
			continue
		}
		problem := Problem{Kind: "Service", Namespace: name.Namespace, Name: name.Name, Reason: ReasonNotRequested}
		switch service := l.services[name]; {
		case service == nil:
			continue
		case service.Spec.Type != corev1.ServiceTypeLoadBalancer:
			problem.Message = fmt.Sprintf("spec.type is %s; only Services of type LoadBalancer get a VIP", service.Spec.Type)
		case service.Spec.LoadBalancerClass == nil:
			problem.Message = "spec.loadBalancerClass is not set, and Millrace has not accepted the Service; set " + millracev1beta1.Class
		default:
			problem.Message = fmt.Sprintf("spec.loadBalancerClass is %s; Millrace serves %s", *service.Spec.LoadBalancerClass, millracev1beta1.Class)
		}
		problems = append(problems, problem)
	}
	return problems
}
