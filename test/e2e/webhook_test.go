// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestWebhook checks warnings through the operator's Service and removes its parts one by one during
// requests to a VIP.
func TestWebhook(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	load, err := cluster.RequestsWhile(t.Context(), s.ipv4, 50, func(context.Context) error {
		installWebhook(t)
		t.Run("warning", warningArrives)
		t.Run("defaults", defaultsAreFilledIn)
		t.Run("swapped CA", swappedCA)
		t.Run("hanging replicas", hangingReplicas)
		t.Run("no replica", noReplica)
		return nil
	})
	must(t, err)
	if load.Requests == 0 || load.Errors != 0 {
		t.Errorf("%d of %d requests failed: %q", load.Errors, load.Requests, load.FirstErrors)
	}
}

// installWebhook installs the overlay with warnings until the test's end.
func installWebhook(t *testing.T) {
	t.Helper()
	install := func(ctx context.Context, overlay string) error {
		if _, err := cluster.Kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(cluster.Root(), "config", overlay)); err != nil {
			return err
		}
		return cluster.RolledOut(ctx, "millrace-system", "deployment/millrace-operator")
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		_, removed := cluster.Kubectl(ctx, "delete", "--ignore-not-found",
			"validatingwebhookconfiguration/millrace-warnings", "mutatingwebhookconfiguration/millrace-service-defaults",
			"clusterrole/millrace-webhook", "clusterrolebinding/millrace-webhook",
			"clusterrole/millrace-webhook-certificate", "clusterrolebinding/millrace-webhook-certificate")
		_, removedHere := cluster.Kubectl(ctx, "-n", "millrace-system", "delete", "--ignore-not-found",
			"service/millrace-webhook", "secret/millrace-webhook", "role/millrace-webhook-certificate", "rolebinding/millrace-webhook-certificate")
		_, removedThere := cluster.Kubectl(ctx, "-n", "millrace-bgp", "delete", "--ignore-not-found", "role/millrace-webhook", "rolebinding/millrace-webhook")
		if err := errors.Join(removed, removedHere, removedThere, install(ctx, "lab")); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	must(t, install(t.Context(), "lab-webhook"))
	eventually(t, 3*time.Minute, func(ctx context.Context) error { return errors.Join(mountSecret(ctx), warned(ctx)) })
}

// mountSecret changes pods so that the kubelets mount the current Secret at once instead of after minutes.
func mountSecret(ctx context.Context) error {
	_, err := cluster.Kubectl(ctx, "-n", "millrace-system", "annotate", "pods", "--overwrite",
		"-l", "app.kubernetes.io/component=operator", "millrace.test/mounted="+time.Now().Format("150405.000"))
	return err
}

// unannounced is a valid advertisement without effect.
const unannounced = `{apiVersion: millrace.io/v1beta1, kind: VIPAdvertisement, metadata: {name: %s}, spec: {pools: [%s]}}
---
`

func warned(ctx context.Context) error {
	const want = `spec.pools[0]: VIPPool "publik" does not exist: did you mean "public"?`
	warnings, err := cluster.Warned(ctx, fmt.Sprintf(unannounced, "warned", "publik"), "--dry-run=server")
	if err == nil && !slices.Contains(warnings, want) {
		err = fmt.Errorf("warnings of kubectl = %q, want %q", warnings, want)
	}
	return err
}

// warningArrives checks kubectl's output with and without a dry run.
func warningArrives(t *testing.T) {
	const service = `{apiVersion: v1, kind: Service, metadata: {name: warned, annotations: {millrace.io/pool: %s}},
	  spec: {type: LoadBalancer, loadBalancerClass: millrace.io/lb, ports: [{port: 80}]}}`
	cleanup(t, "delete", "service", "warned", "--ignore-not-found")
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		warnings, err := cluster.Warned(ctx, fmt.Sprintf(service, "public"), "--dry-run=server")
		if err == nil && !strings.Contains(strings.Join(warnings, "\n"), `from VIPPool "public"`) {
			err = fmt.Errorf("warnings of kubectl in a dry run = %q", warnings)
		}
		return err
	})
	warnings, err := cluster.Warned(t.Context(), fmt.Sprintf(service, "publik"))
	must(t, err)
	if !strings.Contains(strings.Join(warnings, "\n"), `metadata.annotations[millrace.io/pool]: requested pool "publik" does not exist`) {
		t.Errorf("warnings of kubectl = %q", warnings)
	}
}

func defaultsAreFilledIn(t *testing.T) {
	cleanup(t, "delete", "namespace", "filled", "--ignore-not-found", "--wait=false")
	must(t, cluster.Apply(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: filled, labels: {millrace.io/service-defaults: enabled}}}"))
	var service corev1.Service
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		out, err := cluster.Kubectl(ctx, "-n", "filled", "create", "service", "loadbalancer", "web", "--tcp=80", "--dry-run=server", "-o", "json")
		if err != nil {
			return err
		}
		if err := json.Unmarshal(out, &service); err != nil {
			return err
		}
		spec := service.Spec
		if spec.LoadBalancerClass == nil || *spec.IPFamilyPolicy != corev1.IPFamilyPolicyPreferDualStack || *spec.AllocateLoadBalancerNodePorts {
			return fmt.Errorf("Service = %+v", spec)
		}
		return nil
	})
}

// swappedCA replaces the CA: warnings stop, which is reported, and are restored.
func swappedCA(t *testing.T) {
	var configuration admissionregistrationv1.ValidatingWebhookConfiguration
	must(t, cluster.Get(t.Context(), &configuration, "validatingwebhookconfiguration", "millrace-warnings"))
	// Ignore events of earlier runs.
	kubectl(t, "-n", "millrace-system", "delete", "events", "--field-selector", "involvedObject.name=millrace-webhook")
	other := makeCertificate(t, 90*24*time.Hour)
	var patch []map[string]any
	for i := range configuration.Webhooks {
		patch = append(patch, map[string]any{
			"op": "replace", "path": fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), "value": other.certificate,
		})
	}
	body, err := json.Marshal(patch)
	must(t, err)
	kubectl(t, "patch", "validatingwebhookconfiguration", "millrace-warnings", "--type=json", "--patch", string(body))
	eventually(t, time.Minute, func(ctx context.Context) error {
		// Writes succeed in any case.
		if _, err := cluster.Warned(ctx, fmt.Sprintf(unannounced, "swapped", "publik"), "--dry-run=server"); err != nil {
			t.Errorf("rejected while the webhook CA is wrong: %v", err)
		}
		return errors.Join(warned(ctx), eventArrives(ctx, "CABundleRestored"))
	})
}

func eventArrives(ctx context.Context, reason string) error {
	var events corev1.EventList
	err := cluster.Get(ctx, &events, "-n", "millrace-system", "events", "--field-selector", "involvedObject.name=millrace-webhook")
	if err == nil && !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == reason }) {
		err = fmt.Errorf("none of %d webhook events has reason %s", len(events.Items), reason)
	}
	return err
}

// hangingReplicas stops all replicas: the API server waits three seconds per webhook and continues.
func hangingReplicas(t *testing.T) {
	// It returns the number of nodes with a replica: pkill fails on the others.
	signal := func(ctx context.Context, name string) (nodes int) {
		for _, node := range []string{"node1", "node2", "node3"} {
			if _, err := cluster.Exec(ctx, node, "pkill", "-"+name, "-x", "operator"); err == nil {
				nodes++
			}
		}
		return nodes
	}
	t.Cleanup(func() { signal(context.Background(), "CONT") })
	if signal(t.Context(), "STOP") == 0 {
		t.Fatal("no node runs a replica")
	}
	asEver(t, "hanging")
	signal(t.Context(), "CONT")
	eventually(t, 2*time.Minute, warned)
}

func noReplica(t *testing.T) {
	scale := func(ctx context.Context, replicas string) error {
		_, err := cluster.Kubectl(ctx, "-n", "millrace-system", "scale", "deployment/millrace-operator", "--replicas="+replicas)
		return err
	}
	t.Cleanup(func() { must(t, scale(context.Background(), "2")) })
	must(t, scale(t.Context(), "0"))
	kubectl(t, "-n", "millrace-system", "wait", "pods", "-l", "app.kubernetes.io/component=operator", "--for=delete", "--timeout=60s")
	asEver(t, "absent")
	must(t, scale(t.Context(), "2"))
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "deployment/millrace-operator"))
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return errors.Join(mountSecret(ctx), warned(ctx)) })
}

// asEver creates and deletes a namespace with a Service, a pod and Millrace's objects.
func asEver(t *testing.T, name string) {
	t.Helper()
	manifest := strings.ReplaceAll(`
{apiVersion: v1, kind: Namespace, metadata: {name: NAME}}
---
{apiVersion: v1, kind: Service, metadata: {name: away, namespace: NAME},
 spec: {type: LoadBalancer, loadBalancerClass: millrace.io/lb, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: away, namespace: NAME},
 spec: {terminationGracePeriodSeconds: 1, containers: [{name: echo, image: "millrace.test/echo:dev", args: [serve]}]}}
---
{apiVersion: millrace.io/v1beta1, kind: VIPPool, metadata: {name: NAME}, spec: {addresses: [192.0.2.128/30]}}
---
{apiVersion: millrace.io/v1beta1, kind: VIPAdvertisement, metadata: {name: NAME}, spec: {pools: [NAME]}}
---
{apiVersion: millrace.io/v1beta1, kind: LBPeer, metadata: {name: NAME},
 spec: {router: {address: 192.0.2.129}, peerASN: 64512, localASN: 64513, nodeSelector: {matchLabels: {none: none}}}}
`, "NAME", name)
	removed := []string{"delete", "--timeout=60s", "--ignore-not-found", "namespace/" + name, "vippool/" + name, "vipadvertisement/" + name, "lbpeer/" + name}
	cleanup(t, removed...)
	must(t, cluster.Apply(t.Context(), manifest))
	kubectl(t, "-n", name, "wait", "pod/away", "--for=condition=Ready", "--timeout=60s")
	kubectl(t, "-n", name, "annotate", "service/away", "changed=")
	kubectl(t, "-n", name, "delete", "service/away", "pod/away", "--timeout=60s")
	kubectl(t, removed...)
}

type pair struct{ certificate, key []byte }

func makeCertificate(t *testing.T, lifetime time.Duration) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test " + time.Now().String()},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(lifetime),
		DNSNames: []string{"millrace-webhook.millrace-system.svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return pair{
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}
