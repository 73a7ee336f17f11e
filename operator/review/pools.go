// SPDX-License-Identifier: Apache-2.0

package review

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// settings returns warnings about entries with blanks and selectors that match no Namespace.
func settings(pool *millracev1beta1.VIPPool, state *State) []desired.Problem {
	w := warnings{object: desired.Object{Kind: "VIPPool", Name: pool.Name}, state: state}
	w.checkBlanks("spec.addresses", pool.Spec.Addresses)
	w.checkBlanks("spec.reserved", pool.Spec.Reserved)
	w.namespaces("spec.namespaceSelector", pool.Spec.NamespaceSelector)
	if quota := pool.Spec.PerNamespace; quota != nil {
		for i := range quota.Overrides {
			w.namespaces(fmt.Sprintf("spec.perNamespace.overrides[%d].namespaceSelector", i), &quota.Overrides[i].NamespaceSelector)
		}
	}
	return w.found
}

func (w *warnings) checkBlanks(field string, texts []string) {
	for i, text := range texts {
		if trimmed := strings.TrimSpace(text); trimmed != text {
			w.warn(ReasonNoEffect, fmt.Sprintf("%s[%d]", field, i), "the blanks around %q are ignored: remove them", trimmed)
		}
	}
}

func (w *warnings) namespaces(field string, object *metav1.LabelSelector) {
	selector, err := metav1.LabelSelectorAsSelector(object)
	if object == nil || err != nil || len(w.state.Namespaces) == 0 {
		return
	}
	for _, namespace := range w.state.Namespaces {
		if selector.Matches(namespace) {
			return
		}
	}
	w.warn(ReasonNoMatch, field, "selects no Namespace: correct it, or label a Namespace")
}

// VIP returns warnings about a reserved address that its pool does not contain or something else has.
func VIP(vip *millracev1beta1.VIP, state *State) []desired.Problem {
	address, problems := desired.ParseVIP(vip)
	if len(problems) > 0 {
		return problems
	}
	w := warnings{object: desired.Object{Kind: "VIP", Name: vip.Name}, state: state}
	for _, occupied := range state.Occupied {
		if occupied.Range.Contains(address) {
			w.warn(millracev1beta1.ReasonOccupied, "spec.address", "%s belongs to %s: choose an address that nothing else has", address, occupied.By)
			return w.found
		}
	}
	var has []string
	for i := range state.Pools {
		if desired.PoolHas(&state.Pools[i], address) {
			has = append(has, state.Pools[i].Name)
		}
	}
	if vip.Spec.Pool == "" || slices.Contains(has, vip.Spec.Pool) {
		return nil
	}
	advice := "choose an address of it, or add the address to its spec.addresses"
	if len(has) > 0 {
		advice = "write " + strings.Join(has, " or ") + ", which has it"
	}
	w.warn(ReasonNoEffect, "spec.pool", "VIPPool %q does not exist or does not assign %s: %s", vip.Spec.Pool, address, advice)
	return w.found
}
