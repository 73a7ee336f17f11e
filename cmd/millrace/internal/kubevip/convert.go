// SPDX-License-Identifier: Apache-2.0

package kubevip

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
)

// class is the default class of kube-vip.
const class = "kube-vip.io/kube-vip-class"

// Convert returns equivalent objects of Millrace.
func Convert(objects *Objects) migration.Result {
	c := &converter{interfaces: map[string]string{}}
	for i := range objects.configMaps {
		c.configured(&objects.configMaps[i])
	}
	for i := range objects.speakers {
		c.speaker(&objects.speakers[i])
	}
	if len(c.interfaces) > 0 && !c.layer2 {
		c.result.Notes.Add(kindConfigMap, "kubevip", "interfaces require l2: no DaemonSet has vip_arp")
	}
	return c.result
}

type converter struct {
	result  migration.Result
	withOwn []string
	// interfaces maps pools to the interface of their addresses.
	interfaces map[string]string
	layer2     bool
}

func (c *converter) noteFunc(kind, name string) noteFunc {
	return func(format string, args ...any) { c.result.Notes.Add(kind, name, format, args...) }
}

func (c *converter) speaker(from *speaker) {
	note := c.noteFunc(from.kind, from.name)
	env, found := from.environment(note)
	if !found {
		note("no container has settings of kube-vip in its environment: it is left out")
		return
	}
	for _, name := range env.unknown() {
		note("the variable %s is unknown: it is left out", name)
	}
	for _, name := range withoutCounterpart {
		if value := env.values[name]; value != "" && value != "false" {
			note("%s has no equivalent", name)
		}
	}
	if env.isTrue("cp_enable") {
		note("kube-vip continues to serve the control plane (cp_enable): keep it, and set svc_enable to false")
	}
	if !env.isTrue("svc_enable") {
		note("it serves no Services (svc_enable): it is left out")
		return
	}
	if env.isTrue("lb_class_only") {
		name := class
		if given := env.values["lb_class_name"]; given != "" {
			name = given
		}
		note("it serves only the class %s: run the operator with --load-balancer-class=%s", name, name)
	}
	nodes := from.nodes(note)
	if env.isTrue("bgp_enable") {
		c.sessions(from.name, env, nodes, note)
	}
	if env.isTrue("vip_arp") {
		c.links(from.name, env, nodes, note)
	}
}

func (s *speaker) nodes(note noteFunc) *metav1.LabelSelector {
	selector := &metav1.LabelSelector{MatchLabels: s.spec.NodeSelector}
	if terms := s.terms(); len(terms) > 0 {
		if len(terms) > 1 {
			note("only the first of %d terms of its node affinity is converted: create objects for the others", len(terms))
		}
		for _, e := range terms[0].MatchExpressions {
			switch e.Operator {
			case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
				note("the operator %s of its node affinity has no equivalent", e.Operator)
			default:
				selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
					Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values,
				})
			}
		}
		if len(terms[0].MatchFields) > 0 {
			note("matchFields of its node affinity have no equivalent")
		}
	}
	if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		return nil
	}
	note("only its nodes announce: without nodeSelector all nodes do")
	return selector
}

// terms drops the deprecated label of the control plane, which kube-vip's manifest also has.
func (s *speaker) terms() []corev1.NodeSelectorTerm {
	affinity := s.spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) < 2 {
		return terms
	}
	return slices.DeleteFunc(slices.Clone(terms), func(term corev1.NodeSelectorTerm) bool {
		return len(term.MatchExpressions) == 1 && term.MatchExpressions[0].Key == "node-role.kubernetes.io/master"
	})
}

func (c *converter) links(name string, env *environment, nodes *metav1.LabelSelector, note noteFunc) {
	c.layer2 = true
	general := env.values["vip_servicesinterface"]
	if general == "" {
		general = env.values["vip_interface"]
	}
	if given := c.interfaces[global]; given != "" {
		general = given
	}
	if general == "lo" {
		note("interface lo has no link: specify the interface to answer on")
		general = ""
	}
	var others []string
	for i := range c.result.Pools {
		pool := c.result.Pools[i].Name
		own := c.interfaces[pool]
		if pool == global || own == "" {
			others = append(others, pool)
			continue
		}
		c.link(migration.Name(name, "l2", pool), []string{pool}, own, nodes)
	}
	switch {
	case len(others) == len(c.result.Pools):
		c.link(migration.Name(name, "l2"), nil, general, nodes)
	case len(others) > 0:
		c.link(migration.Name(name, "l2"), others, general, nodes)
	}
}

func (c *converter) link(name string, pools []string, on string, nodes *metav1.LabelSelector) {
	to := migration.NewAdvertisement(name)
	to.Spec.Pools, to.Spec.NodeSelector = pools, nodes
	to.Spec.L2 = &millracev1beta1.L2Advertisement{}
	if on != "" {
		to.Spec.L2.Interfaces = []string{on}
	}
	c.result.Advertisements = append(c.result.Advertisements, to)
}

func (e *environment) isTrue(name string) bool {
	value, err := strconv.ParseBool(e.values[name])
	return err == nil && value
}
