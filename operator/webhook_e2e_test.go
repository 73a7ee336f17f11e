// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
	"github.com/millrace-lb/millrace/test/mistakes"
)

type webhooks struct {
	*environment
	warnings *controlplane.Warnings
	client   client.Client
	address  string
	metrics  string
	service  *corev1.Service
	certs    string
	config   *admissionregistrationv1.ValidatingWebhookConfiguration
	defaults *admissionregistrationv1.MutatingWebhookConfiguration
}

// newWebhooks applies config/webhook with a URL instead of the Service.
func newWebhooks(t *testing.T, e *environment) *webhooks {
	t.Helper()
	w := &webhooks{
		environment: e, warnings: &controlplane.Warnings{}, certs: t.TempDir(),
		address: freeAddress(t), metrics: freeAddress(t), service: &corev1.Service{},
	}
	w.read(t, "../config/webhook/service.yaml", w.service)
	w.config = &admissionregistrationv1.ValidatingWebhookConfiguration{}
	w.read(t, "../config/webhook/validating_webhook.yaml", w.config)
	w.defaults = &admissionregistrationv1.MutatingWebhookConfiguration{}
	w.read(t, "../config/webhook/mutating_webhook.yaml", w.defaults)
	bundle := w.certificate(t)
	for _, call := range w.calls() {
		url := "https://" + w.address + *call.Service.Path
		*call = admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: bundle}
	}
	for _, object := range []client.Object{w.service, w.config, w.defaults} {
		must(t, e.client.Create(t.Context(), object))
		t.Cleanup(func() { must(t, e.client.Delete(context.Background(), object)) })
	}
	var err error
	config := e.server.Admin()
	config.WarningHandlerWithContext = w.warnings
	w.client, err = client.New(config, client.Options{Scheme: e.client.Scheme()})
	must(t, err)
	return w
}

func (w *webhooks) read(t *testing.T, file string, object client.Object) {
	t.Helper()
	content, err := os.ReadFile(file)
	must(t, err)
	must(t, yaml.UnmarshalStrict(content, object))
}

func (w *webhooks) calls() (all []*admissionregistrationv1.WebhookClientConfig) {
	for i := range w.config.Webhooks {
		all = append(all, &w.config.Webhooks[i].ClientConfig)
	}
	for i := range w.defaults.Webhooks {
		all = append(all, &w.defaults.Webhooks[i].ClientConfig)
	}
	return all
}

func (w *webhooks) certificate(t *testing.T) []byte {
	t.Helper()
	return w.certificateUntil(t, time.Now().Add(time.Hour))
}

func (w *webhooks) certificateUntil(t *testing.T, end time.Time) []byte {
	t.Helper()
	certificate, private := makeCertificate(t, end)
	must(t, os.WriteFile(filepath.Join(w.certs, "tls.key"), private, 0o600))
	must(t, os.WriteFile(filepath.Join(w.certs, "tls.crt"), certificate, 0o600))
	return certificate
}

func makeCertificate(t *testing.T, end time.Time) (certificate, private []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "webhook"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: end,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	encoded, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
}

func (w *webhooks) trust(t *testing.T, bundle []byte) {
	t.Helper()
	change := func(client.Object) {
		for _, call := range w.calls() {
			call.CABundle = bundle
		}
	}
	update[client.Object](t, w.environment, w.config, change)
	update[client.Object](t, w.environment, w.defaults, change)
}

func (w *webhooks) reported(t *testing.T, reason, note string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error { return w.event(ctx, w.service, reason, note) })
}

func (w *webhooks) serve(t *testing.T, arguments ...string) *instance {
	t.Helper()
	return w.run(t, append([]string{
		"--webhook-bind-address=" + w.address, "--webhook-cert-dir=" + w.certs,
		"--metrics-bind-address=" + w.metrics, "--metrics-secure=false",
	}, arguments...)...)
}

// warned sends dry runs until the API server warns with a text or, if it is empty, does not warn.
func (w *webhooks) warned(t *testing.T, object client.Object, text string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error { return w.warns(ctx, object, text, client.DryRunAll) })
}

func (w *webhooks) warns(ctx context.Context, object client.Object, text string, options ...client.CreateOption) error {
	w.warnings.Take()
	if err := w.client.Create(ctx, object.DeepCopyObject().(client.Object), options...); err != nil {
		return fmt.Errorf("refused: %w", err)
	}
	got := w.warnings.Take()
	if text == "" && got != "" || !strings.Contains(got, text) {
		return fmt.Errorf("warnings %q, want %q", got, text)
	}
	return nil
}

func (w *webhooks) loadBalancer(name string, options ...option) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	class(millracev1beta1.Class)(service)
	for _, option := range options {
		option(service)
	}
	return service
}

// warnings verifies warnings about predicted effects, and that failures of the webhook do not block requests.
func warnings(t *testing.T, e *environment) {
	e.pool(t, "public", nil, "203.0.113.0/28")
	w := newWebhooks(t, e)
	operator := w.serve(t)
	const assigned = `the Service would get 203.0.113.0 from VIPPool "public"`
	w.warned(t, w.loadBalancer("web"), assigned)
	w.warned(t, w.loadBalancer("web"), "no VIPAdvertisement selects 203.0.113.0")
	w.warned(t, w.loadBalancer("web", annotated(millracev1beta1.AnnotationPool, "publik")),
		`metadata.annotations[millrace.io/pool]: requested pool "publik" does not exist`)
	w.warned(t, w.loadBalancer("web", class("example.com/other")), "")
	w.warned(t, &millracev1beta1.VIPAdvertisement{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Spec:       millracev1beta1.VIPAdvertisementSpec{Pools: []string{"publik"}},
	}, `spec.pools[0]: VIPPool "publik" does not exist`)
	// The other served version of the API is matched as well.
	w.warned(t, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "millrace.io/v1beta1", "kind": "VIPAdvertisement",
		"metadata": map[string]any{"name": "all"}, "spec": map[string]any{"pools": []any{"publik"}},
	}}, `spec.pools[0]: VIPPool "publik" does not exist`)
	w.warned(t, &millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster"},
		Spec:       millracev1beta1.VIPPoolSpec{Addresses: []string{"10.96.0.0/28"}},
	}, "spec.addresses: never assigned: 10.96.0.0/28 (ServiceCIDR")
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: otherNamespace, Name: "pods"}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"198.18.1.4"}}},
	}
	must(t, e.client.Create(t.Context(), slice))
	t.Cleanup(func() { must(t, client.IgnoreNotFound(e.client.Delete(context.Background(), slice))) })
	w.warned(t, &millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec:       millracev1beta1.VIPPoolSpec{Addresses: []string{"198.18.0.0/16"}},
	}, "198.18.1.4 (EndpointSlice "+otherNamespace+"/pods)")
	must(t, e.client.Create(t.Context(), &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: "192.0.2.0"},
		Spec:       millracev1beta1.VIPSpec{Address: "192.0.2.0", Claims: []millracev1beta1.VIPClaim{{Namespace: namespace, Name: "used"}}},
	}))
	w.warned(t, &millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "quota"},
		Spec: millracev1beta1.VIPPoolSpec{
			Addresses: []string{"192.0.2.0/28"}, PerNamespace: &millracev1beta1.NamespaceQuota{Max: 0},
		},
	}, "spec.perNamespace: namespace \""+namespace+"\" uses 1 addresses of the pool, but has a quota of 0")
	peer := &millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: "tor"},
		Spec: millracev1beta1.LBPeerSpec{
			Router: millracev1beta1.Router{Address: "198.51.100.101"}, PeerASN: 64512, LocalASN: 64513,
			PasswordSecretRef: &millracev1beta1.SecretReference{Name: "tor"},
		},
	}
	w.warned(t, peer, "spec.passwordSecretRef.name: Secret millrace-bgp/tor does not exist")
	password := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: millracev1beta1.BGPNamespace, Name: "tor"},
		StringData: map[string]string{"password": "secret"},
	}
	must(t, e.client.Create(t.Context(), password))
	t.Cleanup(func() { must(t, e.client.Delete(context.Background(), password)) })
	must(t, w.warns(t.Context(), peer, "", client.DryRunAll))
	must(t, e.client.Create(t.Context(), &millracev1beta1.VIPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}}))
	eventually(t, func(ctx context.Context) error {
		// Without a dry run, valid objects cause no warning.
		object := w.loadBalancer("silent")
		err := w.warns(ctx, object, "")
		return errors.Join(err, client.IgnoreNotFound(e.client.Delete(ctx, object)))
	})

	// A new certificate, which the API server trusts in addition to the old one.
	w.warned(t, w.loadBalancer("web"), "the Service would get")
	previous := w.config.Webhooks[0].ClientConfig.CABundle
	latter := w.certificate(t)
	w.trust(t, slices.Concat(previous, latter))
	w.warned(t, w.loadBalancer("web"), "the Service would get")
	w.trust(t, latter)
	w.warned(t, w.loadBalancer("web"), "the Service would get")

	// With an untrusted or expired certificate requests succeed, and the operator reports it.
	for _, test := range []struct {
		end          time.Time
		trusts       bool
		reason, note string
	}{
		{time.Now().Add(time.Hour), false, "CertificateNotTrusted", "certificate signed by unknown authority"},
		{time.Now().Add(-time.Minute), true, "CertificateExpired", "is valid from "},
	} {
		another := w.certificate(t)
		if certificate := w.certificateUntil(t, test.end); test.trusts {
			another = certificate
		}
		w.trust(t, another)
		w.warned(t, w.loadBalancer("web"), "")
		w.reported(t, test.reason, test.note)
		scraped(t, w.metrics, "millrace_webhook_certificate_trusted 0")
		w.trust(t, w.certificate(t))
		w.warned(t, w.loadBalancer("web"), "the Service would get")
		scraped(t, w.metrics, "millrace_webhook_certificate_trusted 1")
	}
	w.reported(t, "CertificateTrusted", "trusts the webhook certificate")

	operator.kill(t)
	w.warned(t, w.loadBalancer("web"), "")
	must(t, w.warns(t.Context(), w.loadBalancer("unattended"), ""))
}

// refusedObjects sends dry runs of objects with one mistake, which the API server must refuse or warn of.
func refusedObjects(t *testing.T, e *environment) {
	given, cases := mistakes.Read(t)
	for _, object := range given {
		status := object.Object["status"]
		must(t, e.client.Create(t.Context(), object))
		if status != nil {
			object.Object["status"] = status
			must(t, e.client.Status().Update(t.Context(), object))
		}
		t.Cleanup(func() { must(t, e.client.Delete(context.Background(), object)) })
	}
	w := newWebhooks(t, e)
	w.serve(t)
	w.warned(t, w.loadBalancer("web"), "the Service would get")
	for _, test := range cases {
		t.Run(test.Name, func(t *testing.T) {
			w.warnings.Take()
			err := w.client.Create(t.Context(), test.Object(), client.DryRunAll)
			lines := slices.DeleteFunc(strings.Split(w.warnings.Take(), "\n"), func(line string) bool {
				return strings.HasPrefix(line, "the Service would get")
			})
			if err != nil {
				lines = append(lines, err.Error())
			}
			if err := test.Missing(strings.Join(lines, "\n")); err != nil {
				t.Error(err)
			}
		})
	}
}

func warningsOfFollowers(t *testing.T, e *environment) {
	e.pool(t, "public", nil, "203.0.113.0/28")
	e.run(t, "--leader-elect")
	e.addresses(t, e.service(t, "first"), "203.0.113.0")
	w := newWebhooks(t, e)
	w.serve(t, "--leader-elect")
	w.warned(t, w.loadBalancer("web"), `the Service would get 203.0.113.1 from VIPPool "public"`)
}

// selfSigned lets the operator create the certificate with the rights of config/webhook-self-signed.
func selfSigned(t *testing.T, e *environment) {
	e.client.MakeOf(t, "webhook-self-signed/role.yaml")
	e.pool(t, "public", nil, "203.0.113.0/28")
	w := newWebhooks(t, e)
	// No Service is reachable here, so the test connects by the name of one.
	w.trust(t, nil)
	w.serve(t, "--webhook-self-signed")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "millrace-webhook"}}
	another, _ := makeCertificate(t, time.Now().Add(time.Hour))
	var previous []byte
	for _, what := range []string{"made", "made again"} {
		eventually(t, func(ctx context.Context) error {
			if err := errors.Join(w.get(ctx, secret), w.get(ctx, w.config), w.get(ctx, w.defaults)); err != nil {
				return err
			}
			if bytes.Equal(secret.Data["tls.crt"], previous) {
				return fmt.Errorf("the certificate is not %s yet", what)
			}
			// The kubelet would update the mounted Secret.
			for _, key := range []string{"tls.key", "tls.crt"} {
				if err := os.WriteFile(filepath.Join(w.certs, key), secret.Data[key], 0o600); err != nil {
					return err
				}
			}
			return w.handshakes(ctx)
		})
		previous = secret.Data["tls.crt"]
		// A foreign caBundle is corrected and reported.
		w.trust(t, another)
		eventually(t, func(ctx context.Context) error {
			if err := errors.Join(w.get(ctx, w.config), w.get(ctx, w.defaults)); err != nil {
				return err
			}
			return w.handshakes(ctx)
		})
		w.reported(t, "CABundleRestored", "ValidatingWebhookConfiguration millrace-warnings")
		if what == "made" {
			must(t, w.environment.client.Delete(t.Context(), secret))
		}
	}
}

func (w *webhooks) handshakes(ctx context.Context) error {
	for _, call := range w.calls() {
		if err := w.handshake(ctx, call.CABundle); err != nil {
			return err
		}
	}
	return nil
}

func (w *webhooks) handshake(ctx context.Context, bundle []byte) error {
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(bundle)
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: trusted, ServerName: "millrace-webhook." + systemNamespace + ".svc"}}
	connection, err := dialer.DialContext(ctx, "tcp", w.address)
	if err != nil {
		return err
	}
	return connection.Close()
}
