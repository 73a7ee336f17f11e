//go:build e2e

package controller_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

func (e *environment) asGateway(t *testing.T) client.Client {
	t.Helper()
	made, err := client.New(e.server.User(gatewayUser), client.Options{Scheme: e.client.Scheme()})
	must(t, err)
	return made
}

func (e *environment) revokeAll(t *testing.T) {
	t.Helper()
	for _, role := range []string{model.RoleSecrets, model.RoleProxies} {
		must(t, e.client.Delete(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role}}))
	}
	t.Cleanup(func() {
		_, err := e.server.Kubectl(context.Background(), "apply", "-f", "../../config/rbac/gateway/all_namespaces.yaml")
		must(t, err)
	})
}

func (e *environment) grant(t *testing.T, role string) {
	t.Helper()
	_, err := e.server.Kubectl(t.Context(), strings.Fields(model.GrantCommand(role, namespace))[1:]...)
	must(t, err)
	t.Cleanup(func() {
		binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role}}
		must(t, client.IgnoreNotFound(e.client.Delete(context.Background(), binding)))
	})
}

// permittedNamespaces removes the cluster-wide permissions and grants namespaces one by one.
func permittedNamespaces(t *testing.T, e *environment) {
	e.revokeAll(t)
	t.Run("rights", func(t *testing.T) { e.hasRights(t) })
	e.gatewayAPI(t)
	e.class(t)
	e.certificate(t, namespace, "web.example.com")
	t.Cleanup(func() {
		must(t, e.client.Delete(context.Background(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tls"}}))
	})
	address, _ := e.run(t, nil)
	ingress := e.ingress(t, "web", "web.example.com")
	before := client.MergeFrom(ingress.DeepCopy())
	ingress.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"web.example.com"}, SecretName: "tls"}}
	must(t, e.client.Patch(t.Context(), ingress, before))
	dedicated := e.ingress(t, "own", "own.example.com")
	must(t, e.client.Patch(t.Context(), dedicated, client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata": {"annotations": {"millrace.io/dedicated-vip": "true"}}}`))))
	gateway := e.gateway(t, "HTTP/80")
	e.httpRoute(t, "edge", "web")

	proxy := e.proxy(t, address, e.token(t, shared, infrastructure.Audience, e.pod(t, shared, "proxy-1")))
	proxy.receives(t, leadsTo("web", "198.18.0.1"))
	e.warnedOf(t, ingress, model.ReasonForbidden, model.GrantCommand(model.RoleSecrets, namespace))
	e.warnedOf(t, dedicated, model.ReasonForbidden, model.GrantCommand(model.RoleProxies, namespace))
	e.programmed(t, gateway, string(gatewayv1.GatewayReasonPending))
	message := meta.FindStatusCondition(gateway.Status.Conditions, string(gatewayv1.GatewayConditionProgrammed)).Message
	if want := model.GrantCommand(model.RoleProxies, namespace); !strings.Contains(message, want) {
		t.Errorf("message of the Gateway = %q, want %q", message, want)
	}

	e.grant(t, model.RoleSecrets)
	proxy.receives(t, func(has configuration) error {
		if has["certificate/shop/tls"] == nil {
			return errors.New("the proxy has not received the certificate")
		}
		return nil
	})
	e.grant(t, model.RoleProxies)
	controlplane.Eventually(t, time.Minute, func(ctx context.Context) error {
		return errors.Join(e.client.Get(ctx, edge, &appsv1.Deployment{}),
			e.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "ingress-own"}, &appsv1.Deployment{}))
	})

	must(t, e.client.Delete(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: model.RoleSecrets}}))
	controlplane.Eventually(t, time.Minute, func(context.Context) error {
		for len(proxy.updates) > 0 {
			proxy.has.carryOut(<-proxy.updates)
		}
		if proxy.has["certificate/shop/tls"] != nil {
			return errors.New("the proxy still has the certificate")
		}
		return nil
	})
}

// metricsCertificate verifies the client certificate for proxy metrics with the CAs that the proxies
// receive.
func (e *environment) metricsCertificate(t *testing.T) {
	t.Helper()
	secret, trusted := &corev1.Secret{}, &corev1.ConfigMap{}
	e.await(t, secret, types.NamespacedName{Namespace: systemNamespace, Name: infrastructure.MetricsSecret})
	must(t, e.client.Get(t.Context(), shared, trusted))
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(trusted.Data[infrastructure.CAKey]))
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	must(t, err)
}

func (e *environment) hasRights(t *testing.T) {
	asGateway := e.asGateway(t)
	for _, test := range []struct {
		// what is "VERB RESOURCE.GROUP[/SUBRESOURCE] NAMESPACE NAME"; "-" means all.
		what string
		want bool
	}{
		{"list secrets - -", false},
		{"get secrets kube-system -", false},
		{"get secrets shop tls", false},
		{"list secrets millrace-system -", false},
		{"get secrets millrace-system millrace-tunnel-key", false},
		{"get secrets millrace-system millrace-gateway", true},
		{"update secrets millrace-system millrace-gateway", true},
		{"create secrets millrace-system -", true},
		{"create secrets shop -", false},
		{"create deployments.apps kube-system -", false},
		{"create deployments.apps shop -", false},
		{"patch deployments.apps shop web", false},
		{"create deployments.apps millrace-system -", true},
		{"create daemonsets.apps millrace-system -", false},
		{"create pods millrace-system -", false},
		{"create pods/exec millrace-system -", false},
		{"create serviceaccounts shop -", false},
		{"create serviceaccounts/token millrace-system -", false},
		{"impersonate serviceaccounts kube-system -", false},
		{"patch services shop web", false},
		{"create endpointslices.discovery.k8s.io shop -", false},
		{"create viproutes.millrace.io shop -", false},
		{"create rolebindings.rbac.authorization.k8s.io millrace-system -", false},
		{"list rolebindings.rbac.authorization.k8s.io - -", false},
		{"list rolebindings.rbac.authorization.k8s.io - millrace-gateway-secrets", true},
		{"get nodes - -", false},
		{"patch ingresses.networking.k8s.io shop web", false},
		{"patch ingresses.networking.k8s.io/status shop web", true},
		{"patch gateways.gateway.networking.k8s.io shop edge", false},
		{"create certificatesigningrequests.certificates.k8s.io - -", false},
	} {
		words := strings.Fields(strings.ReplaceAll(test.what, " -", " *"))
		resource, subresource, _ := strings.Cut(words[1], "/")
		resource, group, _ := strings.Cut(resource, ".")
		attributes := &authorizationv1.ResourceAttributes{
			Verb: words[0], Group: group, Resource: resource, Subresource: subresource,
			Namespace: strings.Trim(words[2], "*"), Name: strings.Trim(words[3], "*"),
		}
		// The authorizer caches bindings.
		eventually(t, func(ctx context.Context) error {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}
			if err := asGateway.Create(ctx, review); err != nil {
				return err
			}
			if review.Status.Allowed != test.want {
				return fmt.Errorf("%s: allowed is %t, want %t", test.what, review.Status.Allowed, test.want)
			}
			return nil
		})
	}
}

// limitedWrites checks that the admission policy rejects all writes except those of proxies.
func limitedWrites(t *testing.T, e *environment) {
	_, stop := e.run(t, nil)
	e.ingress(t, "web", "web.example.com")
	e.await(t, &appsv1.Deployment{}, shared)
	stop()
	labels := infrastructure.Selector()
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "other"}}
	e.create(t, other)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: shared.Namespace, Name: shared.Name}}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: shared.Namespace, Name: shared.Name}}
	configMap := func(in string, labels map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: "made", Labels: labels}}
	}
	asGateway := client.NewDryRunClient(e.asGateway(t))
	create := func(object client.Object) func(context.Context) error {
		return func(ctx context.Context) error { return asGateway.Create(ctx, object) }
	}
	patch := func(object client.Object, path, value string) func(context.Context) error {
		text := fmt.Sprintf(`[{"op": "add", "path": %q, "value": %s}]`, path, value)
		return func(ctx context.Context) error {
			return asGateway.Patch(ctx, object.DeepCopyObject().(client.Object), client.RawPatch(types.JSONPatchType, []byte(text)))
		}
	}
	const pod, container = "/spec/template/spec", "/spec/template/spec/containers/0"
	const unprivileged = "proxies have no privileges and no environment"
	const withoutCredential = "proxies have no credential but a token for the gateway"
	const labelled = "only objects with the labels"
	for _, test := range []struct {
		name string
		do   func(context.Context) error
		want string
	}{
		{"proxy object", create(configMap(namespace, labels)), ""},
		{"object without labels", create(configMap(namespace, nil)), labelled},
		{"object in kube-system", create(configMap("kube-system", labels)), "may not write objects of namespace kube-system"},
		{"labeled foreign object", patch(other, "/metadata/labels", `{"app.kubernetes.io/name": "millrace", "app.kubernetes.io/component": "proxy"}`), labelled},
		{"deletion of a foreign object", func(ctx context.Context) error { return asGateway.Delete(ctx, other) }, labelled},
		{"deletion of a proxy object", func(ctx context.Context) error { return asGateway.Delete(ctx, deployment.DeepCopy()) }, ""},
		{"removed labels", patch(deployment, "/metadata/labels", `{}`), labelled},
		{"a Deployment", patch(deployment, "/spec/replicas", "3"), ""},
		{"other service account", patch(deployment, pod+"/serviceAccountName", `"default"`), withoutCredential},
		{"token for the API server", patch(deployment, pod+"/automountServiceAccountToken", "true"), withoutCredential},
		{"token for another audience", patch(deployment, pod+"/volumes/-", `{"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "x"}}]}}`), withoutCredential},
		{"a Secret", patch(deployment, pod+"/volumes/-", `{"name": "x", "secret": {"secretName": "tls"}}`), withoutCredential},
		{"hostPath volume", patch(deployment, pod+"/volumes/-", `{"name": "x", "hostPath": {"path": "/"}}`), withoutCredential},
		{"Secret in the environment", patch(deployment, container+"/envFrom", `[{"secretRef": {"name": "tls"}}]`), unprivileged},
		{"host network", patch(deployment, pod+"/hostNetwork", "true"), unprivileged},
		{"root container", patch(deployment, container+"/securityContext/runAsNonRoot", "false"), unprivileged},
		{"a capability", patch(deployment, container+"/securityContext/capabilities/add", `["NET_ADMIN"]`), unprivileged},
		{"an init container", patch(deployment, pod+"/initContainers", `[{"name": "x", "image": "x"}]`), unprivileged},
		{"a Service", patch(service, "/spec/ports/0/port", "81"), ""},
		{"a Service for others' addresses", patch(service, "/spec/externalIPs", `["198.51.100.1"]`), "has no externalIPs"},
		{"Service for foreign pods", patch(service, "/spec/selector", `{"app": "web"}`), "selects proxies"},
	} {
		t.Run(test.name, func(t *testing.T) {
			eventually(t, func(ctx context.Context) error {
				err := test.do(ctx)
				if test.want == "" && err != nil || test.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want)) {
					return fmt.Errorf("the error is %w, want %q", err, test.want)
				}
				return nil
			})
		})
	}
}
