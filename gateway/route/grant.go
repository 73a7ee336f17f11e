// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// ClusterRoles of the gateway that RoleBindings of the same name bind in namespaces (config/rbac/gateway).
const (
	// RoleSecrets permits reading the Secrets of a namespace.
	RoleSecrets = "millrace-gateway-secrets"
	// RoleProxies permits running proxies in a namespace.
	RoleProxies = "millrace-gateway-proxies"
)

// GrantCommand returns the command that binds a role of the gateway in a namespace.
func GrantCommand(role, namespace string) string {
	return fmt.Sprintf("kubectl create rolebinding %s -n %s --clusterrole=%[1]s --serviceaccount=millrace-system:millrace-gateway",
		role, namespace)
}

func (i *index) missingSecret(at key, of corev1.SecretType) *refusal {
	if i.readable != nil && !i.readable[at.namespace] {
		return refuse(ReasonNotPermitted, "", "the gateway may not read Secrets of namespace %s; to permit it: %s",
			at.namespace, GrantCommand(RoleSecrets, at.namespace))
	}
	return refuse(ReasonNotFound, "", "there is no Secret %s/%s of type %s", at.namespace, at.name, of)
}
