// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/live"
)

// liveCertificates have the rights of config/liveapi and are restored after any change.
func liveCertificates(t *testing.T, e *environment) {
	e.client.MakeOf(t, "liveapi/operator_role.yaml", "liveapi/api_service.yaml")
	service := &unstructured.Unstructured{}
	service.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
	service.SetName("v1alpha1.live.millrace.io")
	t.Cleanup(func() { must(t, client.IgnoreNotFound(e.client.Delete(context.Background(), service))) })
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: name}}
	}
	all, api, agents := secret("millrace-live-certificates"), secret("millrace-live-api"), secret("millrace-live-agents")
	e.run(t, "--live-self-signed")
	right := func(ctx context.Context) error {
		err := errors.Join(e.get(ctx, service), e.get(ctx, all), e.get(ctx, api), e.get(ctx, agents))
		if err != nil {
			return err
		}
		text, _, err := unstructured.NestedString(service.Object, "spec", "caBundle")
		if err != nil {
			return err
		}
		bundle, err := base64.StdEncoding.DecodeString(text)
		return errors.Join(err,
			believes(bundle, api.Data, "tls", "millrace-liveapi.millrace-system.svc", x509.ExtKeyUsageServerAuth),
			believes(agents.Data["ca.crt"], api.Data, "client", live.ClientName, x509.ExtKeyUsageClientAuth),
			believes(api.Data["ca.crt"], agents.Data, "tls", live.AgentName, x509.ExtKeyUsageServerAuth))
	}
	eventually(t, right)
	before := all.Data

	update(t, e, agents, func(s *corev1.Secret) { s.Data["tls.crt"] = api.Data["tls.crt"] })
	must(t, e.client.Delete(t.Context(), api))
	must(t, e.client.Patch(t.Context(), service, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"caBundle":"eA=="}}`))))
	eventually(t, right)
	if !bytes.Equal(all.Data["current.ca.crt"], before["current.ca.crt"]) {
		t.Error("the CA was replaced although it was valid")
	}

	must(t, e.client.Delete(t.Context(), all))
	eventually(t, func(ctx context.Context) error {
		if err := right(ctx); err != nil {
			return err
		}
		if bytes.Equal(all.Data["current.ca.crt"], before["current.ca.crt"]) {
			return errors.New("the CA was not replaced")
		}
		return nil
	})

	// Uninstalling removes the APIService first: it is not created again, and no error is logged.
	must(t, e.client.Delete(t.Context(), service))
	must(t, e.client.Delete(t.Context(), api))
	eventually(t, func(ctx context.Context) error { return e.get(ctx, api) })
	if err := e.get(t.Context(), service); err == nil {
		t.Error("the APIService was recreated")
	}
}

func believes(bundle []byte, data map[string][]byte, name, host string, usage x509.ExtKeyUsage) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	pair, err := tls.X509KeyPair(data[name+".crt"], data[name+".key"])
	if err != nil {
		return fmt.Errorf("%s.crt of %s: %w", name, host, err)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: pool, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
		return fmt.Errorf("%s.crt of %s: %w", name, host, err)
	}
	return nil
}
