// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/util/cert"

	"github.com/millrace-lb/millrace/test/harness"
)

// proxies is the Deployment for all Ingresses of the class millrace, and its service account.
const proxies = "ingressclass-millrace"

// hosts share a certificate.
var hosts = []string{"shop.example.com", "blog.example.com"}

// TestIngress serves two hosts with TLS behind a VIP. No request fails while certificates and proxies are
// replaced.
func TestIngress(t *testing.T) {
	must(t, cluster.InstallGateway(t.Context()))
	// The gateway deletes its proxies with the Ingress.
	cleanup(t, "-n", "millrace-system", "wait", "--for=delete", "deployment/"+proxies, "service/"+proxies, "--timeout=50s")
	first := newCertificate(t)
	ca := first.chain
	must(t, cluster.Apply(t.Context(), first.manifest()))
	must(t, cluster.Apply(t.Context(), harness.Ingress))
	cleanup(t, "delete", "ingress,secret", "site", "--ignore-not-found")
	vips := ingressAddresses(t, "site")
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "deployment/"+proxies))
	for _, vip := range vips {
		eventually(t, time.Minute, func(ctx context.Context) error { return cluster.RoutedTo(ctx, "router1", vip, 1, 2, 3) })
	}
	t.Run("both hosts, plain and with TLS", func(t *testing.T) { testSites(t, vips, ca) })
	t.Run("certificates replaced", func(t *testing.T) { ca = testCertificates(t, vips, ca) })
	t.Run("proxies replaced", func(t *testing.T) { testProxiesReplaced(t, vips, ca) })
	t.Run("proxies cannot read Secrets", testRights)
}

// certificate is a self-signed certificate of both hosts.
type certificate struct{ chain, key string }

func newCertificate(t *testing.T) certificate {
	t.Helper()
	chain, key, err := cert.GenerateSelfSignedCertKey(hosts[0], nil, hosts[1:])
	must(t, err)
	return certificate{chain: string(chain), key: string(key)}
}

func (c certificate) manifest() string { return c.secret("site") }

func (c certificate) secret(name string) string {
	encode := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: %s, namespace: default}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}`, name, encode(c.chain), encode(c.key))
}

// ingressAddresses waits until the Ingress's status has an address of each family and both ports.
func ingressAddresses(t *testing.T, name string) []netip.Addr {
	t.Helper()
	var vips []netip.Addr
	eventually(t, time.Minute, func(ctx context.Context) error {
		var ingress networkingv1.Ingress
		if err := cluster.Get(ctx, &ingress, "ingress", name); err != nil {
			return err
		}
		vips = nil
		for _, point := range ingress.Status.LoadBalancer.Ingress {
			var ports []int32
			for _, port := range point.Ports {
				ports = append(ports, port.Port)
			}
			vip, err := netip.ParseAddr(point.IP)
			if err != nil || !slices.Equal(ports, []int32{80, 443}) {
				return fmt.Errorf("Ingress address = %q, ports = %v: %w", point.IP, ports, err)
			}
			vips = append(vips, vip)
		}
		if len(vips) != 2 || vips[0].Is4() == vips[1].Is4() {
			return fmt.Errorf("Ingress addresses = %v, want one of each family", vips)
		}
		return nil
	})
	return vips
}

func testSites(t *testing.T, vips []netip.Addr, ca string) {
	for _, vip := range vips {
		for _, host := range hosts {
			for _, trusted := range []string{"", ca} {
				site := harness.Site{Host: host, VIP: vip, CA: trusted}
				// Some proxies may not have the certificate yet.
				eventually(t, 30*time.Second, func(ctx context.Context) error {
					_, err := cluster.Visit(ctx, site, 20)
					return err
				})
				// The number makes shares below half improbable.
				load, err := cluster.Visit(t.Context(), site, 600)
				must(t, err)
				if err := load.Check(6, client(vip)); err != nil {
					t.Errorf("%s at %s, TLS %v: %v", host, vip, trusted != "", err)
				}
			}
		}
		for _, trusted := range []string{"", ca} {
			load, err := cluster.Visit(t.Context(), harness.Site{Host: "other.example.com", VIP: vip, CA: trusted}, 5)
			if err == nil && load.Errors != load.Requests {
				t.Errorf("a host without an owner is served at %s, TLS %v: %+v", vip, trusted != "", load)
			}
		}
	}
}

// undisturbed checks that no request to either address fails while f runs.
func undisturbed(t *testing.T, vips []netip.Addr, ca string, f func(context.Context) error) {
	t.Helper()
	type result struct {
		load harness.Load
		err  error
	}
	second := make(chan result, 1)
	begun, ended := make(chan struct{}), make(chan struct{})
	go func() {
		load, err := cluster.VisitWhile(t.Context(), harness.Site{Host: hosts[1], VIP: vips[1], CA: ca}, 25, func(ctx context.Context) error {
			close(begun)
			select {
			case <-ended:
			case <-ctx.Done():
			}
			return nil
		})
		second <- result{load, err}
	}()
	<-begun
	load, err := cluster.VisitWhile(t.Context(), harness.Site{Host: hosts[0], VIP: vips[0], CA: ca}, 25, f)
	close(ended)
	for _, r := range []result{{load, err}, <-second} {
		must(t, r.err)
		if r.load.Errors != 0 || r.load.Requests < 50 {
			t.Errorf("%d of %d requests failed: %q", r.load.Errors, r.load.Requests, r.load.FirstErrors)
		}
	}
}

// testCertificates replaces the certificate repeatedly and returns the CA of the last one.
func testCertificates(t *testing.T, vips []netip.Addr, ca string) string {
	trusted, last := ca, ca
	// All CAs are trusted, because a connection may get any certificate.
	next := make([]certificate, 15)
	for i := range next {
		next[i] = newCertificate(t)
		trusted += next[i].chain
	}
	undisturbed(t, vips, trusted, func(ctx context.Context) error {
		for _, certificate := range next {
			if err := cluster.Apply(ctx, certificate.manifest()); err != nil {
				return err
			}
			last = certificate.chain
			// The client that trusts only the last one detects it.
			if err := harness.Eventually(ctx, 15*time.Second, func(ctx context.Context) error {
				_, err := cluster.Visit(ctx, harness.Site{Host: hosts[0], VIP: vips[0], CA: last}, 10)
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return last
}

func testProxiesReplaced(t *testing.T, vips []netip.Addr, ca string) {
	undisturbed(t, vips, ca, func(ctx context.Context) error {
		if _, err := cluster.Kubectl(ctx, "-n", "millrace-system", "rollout", "restart", "deployment/"+proxies); err != nil {
			return err
		}
		if err := cluster.RolledOut(ctx, "millrace-system", "deployment/"+proxies); err != nil {
			return err
		}
		// Old proxies drain after the rollout completes.
		return harness.Eventually(ctx, time.Minute, func(ctx context.Context) error {
			_, all, err := cluster.LivePods(ctx, "millrace-system", "app.kubernetes.io/component=proxy")
			if err == nil && all != 2 {
				err = fmt.Errorf("%d proxies, want 2", all)
			}
			return err
		})
	})
}

func testRights(t *testing.T) {
	account := "system:serviceaccount:millrace-system:" + proxies
	for _, verb := range []string{"get", "list", "watch"} {
		// The command also fails for the response "no".
		out, err := cluster.Kubectl(t.Context(), "auth", "can-i", verb, "secrets", "--all-namespaces", "--as", account)
		if answer := strings.TrimSpace(string(out)); answer != "no" {
			t.Errorf("kubectl auth can-i %s secrets = %q (%v), want no", verb, answer, err)
		}
	}
	tokens := kubectl(t, "-n", "millrace-system", "get", "pods", "-l", "app.kubernetes.io/component=proxy",
		"-o", "jsonpath={.items[*].spec.volumes[*].projected.sources[*].serviceAccountToken.audience}")
	for _, audience := range strings.Fields(tokens) {
		if audience != "millrace-gateway" {
			t.Errorf("a proxy has a token for audience %q", audience)
		}
	}
}
