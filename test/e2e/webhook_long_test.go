// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestWebhookRotation checks that writes succeed with all warnings while the certificate is replaced 29
// days before it expires, and with an expired one.
func TestWebhookRotation(t *testing.T) {
	const switches = 29*24*time.Hour + 3*time.Minute
	writeCertificate(t, makeCertificate(t, switches))
	switched := time.Now().Add(3 * time.Minute)
	installWebhook(t)
	previous := servedSecret(t)
	if time.Now().After(switched) {
		t.Fatal("the installation of the webhook took more than three minutes: the certificate was already replaced")
	}
	var requests int
	for changed := false; !changed; {
		must(t, everyWarning(t.Context(), &requests))
		secret := servedSecret(t)
		changed = !bytes.Equal(secret, previous) && served(t.Context(), secret) == nil
		if time.Now().After(switched.Add(3 * time.Minute)) {
			t.Fatalf("the certificate was not replaced: %v", served(t.Context(), secret))
		}
	}
	for range 3 {
		must(t, everyWarning(t.Context(), &requests))
	}
	t.Logf("%d requests returned the warning", requests)

	// The operator replaces an expired certificate.
	writeCertificate(t, makeCertificate(t, -time.Hour))
	eventually(t, 3*time.Minute, func(ctx context.Context) error {
		if _, err := cluster.Warned(ctx, fmt.Sprintf(unannounced, "ended", "publik"), "--dry-run=server"); err != nil {
			t.Errorf("rejected while the webhook certificate is expired: %v", err)
		}
		return errors.Join(served(ctx, servedSecret(t)), warned(ctx))
	})
}

func writeCertificate(t *testing.T, p pair) {
	t.Helper()
	encode := base64.StdEncoding.EncodeToString
	must(t, cluster.Apply(t.Context(), fmt.Sprintf(
		`{apiVersion: v1, kind: Secret, type: kubernetes.io/tls, metadata: {name: millrace-webhook, namespace: millrace-system},
		  data: {tls.crt: %s, tls.key: %s}}`, encode(p.certificate), encode(p.key))))
}

func servedSecret(t *testing.T) []byte {
	t.Helper()
	var secret corev1.Secret
	must(t, cluster.Get(t.Context(), &secret, "-n", "millrace-system", "secret", "millrace-webhook"))
	return secret.Data[corev1.TLSCertKey]
}

func served(ctx context.Context, certificate []byte) error {
	var pods corev1.PodList
	if err := cluster.Get(ctx, &pods, "-n", "millrace-system", "pods", "-l", "app.kubernetes.io/component=operator"); err != nil {
		return err
	}
	if len(pods.Items) == 0 {
		return errors.New("no replicas")
	}
	for i := range pods.Items {
		address, err := netip.ParseAddr(pods.Items[i].Status.PodIP)
		if err != nil {
			return fmt.Errorf("pod %s: %w", pods.Items[i].Name, err)
		}
		out, err := cluster.Exec(ctx, "cp", "curl", "--insecure", "--silent", "--show-error", "--max-time", "5",
			"--output", "/dev/null", "--write-out", "%{certs}", "https://"+netip.AddrPortFrom(address, 9443).String()+"/warnings")
		if err != nil {
			return err
		}
		if !bytes.Contains(out, bytes.TrimSpace(certificate)) {
			return errors.Join(fmt.Errorf("%s does not serve the certificate of the Secret", pods.Items[i].Name), mountSecret(ctx))
		}
	}
	return nil
}

// everyWarning writes objects with distinct warnings.
func everyWarning(ctx context.Context, requests *int) error {
	const objects = 50
	var manifest strings.Builder
	for i := range objects {
		fmt.Fprintf(&manifest, unannounced, fmt.Sprintf("rotation-%d", i), fmt.Sprintf("pool-%d", i))
	}
	warnings, err := cluster.Warned(ctx, manifest.String(), "--dry-run=server")
	if err != nil {
		return err
	}
	*requests += objects
	var lost []error
	for i := range objects {
		want := fmt.Sprintf(`spec.pools[0]: VIPPool "pool-%d" does not exist`, i)
		if !strings.Contains(strings.Join(warnings, "\n"), want) {
			lost = append(lost, fmt.Errorf("no warning %q", want))
		}
	}
	return errors.Join(lost...)
}
