// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// external asks a Service for each request. Where it cannot be asked, nobody is served. One of
// another namespace sees the credentials of the clients, and takes their load: its namespace has to
// allow that by a ReferenceGrant, as to routes.
func (r *ingressRun) external(ingress *networkingv1.Ingress, of *nginx.External) *resource.Filter {
	at := key{of.Namespace, of.Service}
	if !r.permitted(referrer{kindIngress, ingress.Namespace}, kindService, at) {
		r.refuseIngress(ingress, "auth-url", fmt.Sprintf("no ReferenceGrant in %s lets an Ingress (networking.k8s.io) of %s refer to Service %s",
			at.namespace, ingress.Namespace, at.name))
		return nil
	}
	name, refused := r.service(at, "", of.Port, speech{protocol: resource.Backend_HTTP1, tls: of.TLS})
	if refused != nil {
		r.refuseIngress(ingress, "auth-url", refused.message)
		return nil
	}
	return &resource.Filter{Kind: &resource.Filter_ExternalAuthorization{ExternalAuthorization: &resource.ExternalAuthorization{
		Backend: name, Path: of.Path, Host: of.Host, Method: of.Method, RequestHeaders: []string{"*"},
		ResponseHeaders: of.ResponseHeaders, SetCookies: true, SignIn: of.SignIn, Redirect: of.Redirect,
	}}}
}
