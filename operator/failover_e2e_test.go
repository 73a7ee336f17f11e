// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// warmFailover checks that a standby replica is ready once it has cached all objects, because it may not
// list them later.
func warmFailover(t *testing.T, e *environment) {
	first := e.run(t, "--leader-elect")
	e.pool(t, "main", nil, "203.0.113.0/24")
	service := e.service(t, "web")
	e.addresses(t, service, "203.0.113.0")
	address := freeAddress(t)
	e.run(t, "--leader-elect", "--health-probe-bind-address="+address)
	eventually(t, func(ctx context.Context) error { return isReady(ctx, address) })

	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "millrace-operator"}}
	e.mayReadServices(t, role, false)
	defer e.mayReadServices(t, role, true)
	first.stop(t)
	late := e.service(t, "late")
	e.addresses(t, late, "203.0.113.1")
	e.addresses(t, service, "203.0.113.0")
}

// mayReadServices changes a role of the operator and waits until it is effective.
func (e *environment) mayReadServices(t *testing.T, role *rbacv1.ClusterRole, allowed bool) {
	t.Helper()
	update(t, e, role, func(role *rbacv1.ClusterRole) {
		for i := range role.Rules {
			rule := &role.Rules[i]
			if !slices.Equal(rule.Resources, []string{"services"}) {
				continue
			}
			// A watch can start with a list; running watches continue.
			rule.Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool { return verb == "list" || verb == "watch" })
			if allowed {
				rule.Verbs = append(rule.Verbs, "list", "watch")
			}
		}
	})
	eventually(t, func(ctx context.Context) error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: operatorUser, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "watch", Resource: "services"},
		}}
		if err := e.client.Create(ctx, review); err != nil {
			return err
		}
		if review.Status.Allowed != allowed {
			return fmt.Errorf("operator may watch Services = %t, want %t", review.Status.Allowed, allowed)
		}
		return nil
	})
}

func isReady(ctx context.Context, address string) error {
	if _, err := getPage(ctx, address, "/readyz"); err != nil {
		return fmt.Errorf("the operator is not ready: %w", err)
	}
	return nil
}
