// SPDX-License-Identifier: Apache-2.0

package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/conflict"
)

// ownStatus is the part of a Service's status that the operator writes, with exported fields to compare.
type ownStatus struct {
	Ingress    []corev1.LoadBalancerIngress
	Conditions []metav1.Condition
}

func ownStatusOf(service *corev1.Service) ownStatus {
	own := ownStatus{Ingress: service.Status.LoadBalancer.Ingress}
	for _, name := range serviceConditions {
		if condition := meta.FindStatusCondition(service.Status.Conditions, name); condition != nil {
			kept := *condition
			kept.LastTransitionTime = metav1.Time{}
			own.Conditions = append(own.Conditions, kept)
		}
	}
	return own
}

func (s ownStatus) isSame(other ownStatus) bool { return equality.Semantic.DeepEqual(s, other) }

type statusConflict struct {
	conflict.Detector[ownStatus]
	uid      types.UID
	reported map[string]metav1.Condition
}

// statusConflicts is used only by the worker that holds the lock.
type statusConflicts map[types.NamespacedName]*statusConflict

func (c statusConflicts) of(service *corev1.Service) *statusConflict {
	key := client.ObjectKeyFromObject(service)
	known := c[key]
	if known == nil || known.uid != service.UID {
		known = &statusConflict{uid: service.UID, reported: map[string]metav1.Condition{}}
		c[key] = known
	}
	return known
}
