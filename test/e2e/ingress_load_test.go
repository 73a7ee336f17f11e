// SPDX-License-Identifier: Apache-2.0

//go:build load && e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/test/echo/webreport"
	"github.com/millrace-lb/millrace/test/harness"
)

const webProxies = "ingressclass-web"

var webHosts = []string{"web.example.com", "rpc.example.com"}

// webRate is in requests per second of each of the five kinds: 200 in all.
const webRate = 40

// TestIngressUnderLoad sends requests of all kinds through proxies during changes. None fails, and a stream
// ends only with its proxy or pod.
func TestIngressUnderLoad(t *testing.T) {
	announceFromLabelled(t)
	must(t, cluster.InstallGateway(t.Context()))
	cleanup(t, "delete", "--ignore-not-found", "--wait=false", "-k", cluster.Root()+"/config/lab-gateway")
	cleanup(t, "-n", "millrace-system", "wait", "--for=delete", "deployment/"+webProxies, "service/"+webProxies, "--timeout=50s")
	cleanup(t, "delete", "--ignore-not-found", "ingress/web", "ingressclass/web", "secret/web", "service/web", "deployment/web", "configmap/web")
	ca := newAuthority(t)
	must(t, cluster.Apply(t.Context(), ca.manifest(t, 1)))
	must(t, cluster.Apply(t.Context(), harness.Web))
	must(t, cluster.RolledOut(t.Context(), "default", "deployment/web"))
	vips := ingressAddresses(t, "web")
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "deployment/"+webProxies))
	l := &webLoad{t: t, ca: ca, vips: vips}
	l.routed(1, 2, 3)
	l.start()

	l.during("100 edited routes", false, editRoutes)
	l.during("certificates replaced every second", false, func(ctx context.Context) error { return rotate(ctx, t, ca) })
	l.during("an LB node withdrawn, the controllers away", false, l.leaveAlone)
	l.during("pods of the Service replaced", true, func(ctx context.Context) error { return replace(ctx, "default", "web", "app=web", 3) })
	l.during("proxies replaced", true, func(ctx context.Context) error {
		return replace(ctx, "millrace-system", webProxies, proxyPods, 2)
	})
	for _, count := range []int{6, 2} {
		l.during(fmt.Sprintf("%d proxies", count), count == 2, func(ctx context.Context) error { return scaleProxies(ctx, count) })
	}
}

// proxyPods selects the pods of all proxies.
const proxyPods = "app.kubernetes.io/component=proxy"

type webLoad struct {
	t    *testing.T
	ca   *authority
	vips []netip.Addr
	web  *harness.WebClient
}

func (l *webLoad) routed(nodes ...int) {
	l.t.Helper()
	for _, vip := range l.vips {
		eventually(l.t, time.Minute, func(ctx context.Context) error { return cluster.RoutedTo(ctx, "router1", vip, nodes...) })
	}
}

func (l *webLoad) start() {
	l.t.Helper()
	for _, host := range webHosts {
		for _, vip := range l.vips {
			eventually(l.t, time.Minute, func(ctx context.Context) error {
				load, err := cluster.Visit(ctx, harness.Site{Host: host, VIP: vip, CA: l.ca.pem}, 20)
				if err == nil && load.Errors > 0 {
					err = fmt.Errorf("%d of %d requests failed: %q", load.Errors, load.Requests, load.FirstErrors)
				}
				return err
			})
		}
	}
	// It ends by End, after the test's context.
	web, err := cluster.StartWeb(context.WithoutCancel(l.t.Context()), harness.WebOptions{
		VIPs: l.vips, Host: webHosts[0], GRPCHost: webHosts[1], CA: l.ca.pem, Rate: webRate,
	})
	must(l.t, err)
	l.web = web
	l.t.Cleanup(func() {
		if err := web.End(); err != nil {
			l.t.Error(err)
		}
	})
}

// during checks that no request fails while f runs. ends is true if streams may end.
func (l *webLoad) during(event string, ends bool, f func(context.Context) error) {
	l.t.Run(event, func(t *testing.T) {
		if err := f(t.Context()); err != nil {
			t.Error(err)
		}
		report, err := l.web.Check()
		must(t, err)
		for _, name := range []string{webreport.Kept, webreport.Fresh, webreport.HTTP2, webreport.GRPC, webreport.WebSocket} {
			kind := report.Kinds[name]
			t.Logf("%5.1f s to %5.1f s: %-9s %5d requests, %d failed, p50 %5.1f ms, p99 %6.1f ms, max %7.1f ms, %d streams reopened, %d messages resent",
				report.From, report.To, name, kind.Requests, kind.Failed, kind.P50, kind.P99, kind.Max, kind.Reopened, kind.Resent)
			for _, end := range kind.FirstEnds {
				t.Logf("%s: a stream was closed at %.1f s: %s", name, end.At, end.Error)
			}
			if kind.Failed > 0 {
				t.Errorf("%s: %d of %d requests failed: %v", name, kind.Failed, kind.Requests, kind.FirstFailures)
			}
			if kind.Reopened > 0 && !ends {
				t.Errorf("%s: %d streams were closed although their proxies and pods are running", name, kind.Reopened)
			}
			// The result is only valid if the client has enough CPU time.
			if want := int((report.To - report.From) * webRate / 2); kind.Requests < want {
				t.Errorf("%s: %d requests, want at least %d", name, kind.Requests, want)
			}
		}
	})
}

// editRoutes changes the Ingress 100 times: paths, Services and their order.
func editRoutes(ctx context.Context) error {
	var edits strings.Builder
	for i := range 100 {
		path := fmt.Sprintf(`{path: "/%d", pathType: Exact, backend: {service: {name: none, port: {number: %d}}}}`, i, i+1)
		whole := `{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}`
		if i%2 == 1 {
			// Another port of the Service has another connection pool.
			whole = `{path: /, pathType: ImplementationSpecific, backend: {service: {name: web, port: {number: 80}}}}`
		}
		if i == 99 {
			path = whole
		}
		fmt.Fprintf(&edits, `---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: default}
spec:
  ingressClassName: web
  tls: [{hosts: [%[1]s, %[2]s], secretName: web}]
  rules:
  - {host: %[1]s, http: {paths: [%[3]s, %[4]s]}}
  - host: %[2]s
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: grpc}}}}]}
`, webHosts[0], webHosts[1], path, whole)
	}
	return cluster.Apply(ctx, edits.String())
}

// rotate replaces the certificate every second and waits until all proxies serve the last one.
func rotate(ctx context.Context, t *testing.T, ca *authority) error {
	const times = 10
	each := time.NewTicker(time.Second)
	defer each.Stop()
	for i := range times {
		if err := cluster.Apply(ctx, ca.manifest(t, int64(i+2))); err != nil {
			return err
		}
		select {
		case <-each.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// leaveAlone removes the controllers for a minute, in which a node stops and resumes announcing.
func (l *webLoad) leaveAlone(ctx context.Context) error {
	const away = time.Minute
	if _, err := cluster.Kubectl(ctx, "-n", "millrace-system", "scale", "deployment/millrace-gateway", "--replicas=0"); err != nil {
		return err
	}
	if _, err := cluster.Kubectl(ctx, "-n", "millrace-system", "delete", "pods", "-l", gatewayPods, "--force", "--grace-period=0"); err != nil {
		return err
	}
	back := time.NewTimer(away)
	defer back.Stop()
	if _, err := cluster.Kubectl(ctx, "label", "node", "node1", "millrace.test/announce-"); err != nil {
		return err
	}
	l.routed(2, 3)
	if _, err := cluster.Kubectl(ctx, "label", "node", "node1", "millrace.test/announce=yes"); err != nil {
		return err
	}
	l.routed(1, 2, 3)
	select {
	case <-back.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, err := cluster.Kubectl(ctx, "-n", "millrace-system", "scale", "deployment/millrace-gateway", "--replicas=2"); err != nil {
		return err
	}
	return cluster.RolledOut(ctx, "millrace-system", "deployment/millrace-gateway")
}

const gatewayPods = "app.kubernetes.io/component=gateway"

func replace(ctx context.Context, namespace, deployment, selector string, pods int) error {
	if _, err := cluster.Kubectl(ctx, "-n", namespace, "rollout", "restart", "deployment/"+deployment); err != nil {
		return err
	}
	if err := cluster.RolledOut(ctx, namespace, "deployment/"+deployment); err != nil {
		return err
	}
	return onlyPods(ctx, namespace, selector, pods)
}

func onlyPods(ctx context.Context, namespace, selector string, pods int) error {
	return harness.Eventually(ctx, 2*time.Minute, func(ctx context.Context) error {
		live, all, err := cluster.LivePods(ctx, namespace, selector)
		if err == nil && (len(live) != pods || all != pods) {
			err = fmt.Errorf("%d pods are running and %d exist, want %d", len(live), all, pods)
		}
		return err
	})
}

func scaleProxies(ctx context.Context, count int) error {
	patch := fmt.Sprintf(`{"data":{"replicas":"%d"}}`, count)
	if _, err := cluster.Kubectl(ctx, "patch", "configmap/web", "--type=merge", "--patch", patch); err != nil {
		return err
	}
	return onlyPods(ctx, "millrace-system", proxyPods, count)
}

type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the CA of the test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	signer, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{signer, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

func (a *authority) manifest(t *testing.T, serial int64) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: webHosts[0]}, DNSNames: webHosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return certificate{
		chain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		key:   string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	}.secret("web")
}
