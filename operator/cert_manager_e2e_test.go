// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package operator_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// certManagerTimeout is the time for a start of cert-manager, which retries the first requests of a CA.
const certManagerTimeout = 2 * time.Minute

// TestCertManager lets cert-manager issue and renew the webhook's certificate by
// config/webhook-cert-manager while Services are written.
func TestCertManager(t *testing.T) {
	e := newEnvironment(t)
	e.pool(t, "public", nil, "203.0.113.0/28")
	e.certManager(t)
	w := newWebhooks(t, e)
	w.callByService(t)
	e.client.MakeOf(t, "webhook-cert-manager/certificate.yaml")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "millrace-webhook"}}
	controlplane.Eventually(t, certManagerTimeout, func(ctx context.Context) error { return w.injected(ctx, secret) })
	first := secret.Data["tls.crt"]
	w.mount(t, secret)
	operator := w.serve(t)
	const answer = `the Service would get 203.0.113.0 from VIPPool "public"`
	w.warned(t, w.loadBalancer("web"), answer)

	load := w.load(t, answer)
	for range 3 {
		previous := secret.Data["tls.crt"]
		w.renew(t)
		controlplane.Eventually(t, certManagerTimeout, func(ctx context.Context) error {
			if err := w.injected(ctx, secret); err != nil || !bytes.Equal(secret.Data["tls.crt"], previous) {
				return err
			}
			return errors.New("the certificate has not been renewed yet")
		})
		// The kubelet takes longer than cainjector.
		load.goesOn(t)
		w.mount(t, secret)
		eventually(t, func(ctx context.Context) error {
			if err := w.serves(ctx, secret.Data["tls.crt"]); err != nil {
				return err
			}
			// The API server keeps its connections; this is a new one.
			return errors.Join(w.get(ctx, w.config), w.get(ctx, w.defaults), w.handshakes(ctx))
		})
		load.goesOn(t)
	}
	if bytes.Equal(secret.Data["tls.crt"], first) {
		t.Error("the certificate was not renewed")
	}
	load.end(t)
	// The API server must reconnect.
	operator.stop(t)
	w.serve(t)
	w.warned(t, w.loadBalancer("web"), answer)
}

func (e *environment) certManager(t *testing.T) {
	t.Helper()
	const module = "../hack/tools/cert-manager"
	program := filepath.Join(t.TempDir(), "cert-manager")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = module
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build cert-manager: %v: %s", err, output)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager")
	list.Dir = module
	sources, err := list.Output()
	must(t, err)
	crds := filepath.Join(strings.TrimSpace(string(sources)), "deploy", "crds")
	files, err := filepath.Glob(filepath.Join(crds, "*.yaml"))
	must(t, err)
	for _, file := range files {
		_, err := e.server.Kubectl(t.Context(), "apply", "--server-side", "-f", file)
		must(t, err)
	}
	_, err = e.server.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd", "--all")
	must(t, err)
	kubeconfig, err := e.server.WriteKubeconfig("admin")
	must(t, err)
	log, err := os.Create(filepath.Join(t.TempDir(), "cert-manager.log"))
	must(t, err)
	command := exec.Command(program, "--kubeconfig="+kubeconfig)
	command.Stdout, command.Stderr = log, log
	must(t, command.Start())
	t.Cleanup(func() {
		if t.Failed() {
			content, _ := os.ReadFile(log.Name())
			t.Logf("log of cert-manager: %s", content[max(0, len(content)-20000):])
		}
		must(t, command.Process.Signal(syscall.SIGTERM))
		if err := command.Wait(); err != nil {
			t.Errorf("cert-manager exited with %v", err)
		}
		must(t, log.Close())
	})
}

// callByService makes the Service's name resolve to this machine, and cert-manager set caBundle.
func (w *webhooks) callByService(t *testing.T) {
	t.Helper()
	update(t, w.environment, w.service, func(service *corev1.Service) {
		service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}
	})
	_, text, err := net.SplitHostPort(w.address)
	must(t, err)
	number, err := strconv.ParseInt(text, 10, 32)
	must(t, err)
	change := func(object client.Object) {
		object.SetAnnotations(map[string]string{"cert-manager.io/inject-ca-from": systemNamespace + "/millrace-webhook"})
		for _, call := range w.calls() {
			if call.URL == nil {
				continue
			}
			_, path, _ := strings.Cut(*call.URL, w.address)
			port := int32(number)
			*call = admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
				Namespace: systemNamespace, Name: w.service.Name, Path: &path, Port: &port,
			}}
		}
	}
	update[client.Object](t, w.environment, w.config, change)
	update[client.Object](t, w.environment, w.defaults, change)
}

func (w *webhooks) injected(ctx context.Context, secret *corev1.Secret) error {
	if err := errors.Join(w.get(ctx, secret), w.get(ctx, w.config), w.get(ctx, w.defaults)); err != nil {
		return err
	}
	for _, call := range w.calls() {
		if len(call.CABundle) == 0 || !bytes.Equal(call.CABundle, secret.Data["ca.crt"]) {
			return fmt.Errorf("caBundle = %q, want the CA %q", call.CABundle, secret.Data["ca.crt"])
		}
	}
	return nil
}

func (w *webhooks) mount(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	for _, key := range []string{"tls.key", "tls.crt"} {
		must(t, os.WriteFile(filepath.Join(w.certs, key), secret.Data[key], 0o600))
	}
}

// renew requests a renewal, like cmctl renew.
func (w *webhooks) renew(t *testing.T) {
	t.Helper()
	certificate := &unstructured.Unstructured{}
	certificate.SetAPIVersion("cert-manager.io/v1")
	certificate.SetKind("Certificate")
	certificate.SetNamespace(systemNamespace)
	certificate.SetName("millrace-webhook")
	eventually(t, func(ctx context.Context) error {
		if err := w.get(ctx, certificate); err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(certificate.Object, "status", "conditions")
		conditions = append(conditions, map[string]any{
			"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed by a test",
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
		})
		if err := unstructured.SetNestedSlice(certificate.Object, conditions, "status", "conditions"); err != nil {
			return err
		}
		return w.environment.client.Status().Update(ctx, certificate)
	})
}

func (w *webhooks) serves(ctx context.Context, certificate []byte) error {
	// The certificate is compared, so it need not be trusted.
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	connection, err := dialer.DialContext(ctx, "tcp", w.address)
	if err != nil {
		return err
	}
	defer connection.Close()
	shown := connection.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw
	if block, _ := pem.Decode(certificate); block == nil || !bytes.Equal(block.Bytes, shown) {
		return errors.New("the operator serves another certificate")
	}
	return nil
}

type writing struct {
	served atomic.Int64
	stop   context.CancelFunc
	people sync.WaitGroup
	mu     sync.Mutex
	wrong  []error
}

// load expects the text as a warning in each response.
func (w *webhooks) load(t *testing.T, text string) *writing {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	load := &writing{stop: stop}
	for range 4 {
		warnings := &controlplane.Warnings{}
		config := w.server.Admin()
		config.WarningHandlerWithContext = warnings
		person, err := client.New(config, client.Options{Scheme: w.environment.client.Scheme()})
		must(t, err)
		load.people.Go(func() {
			for ctx.Err() == nil {
				warnings.Take()
				err := person.Create(ctx, w.loadBalancer("loaded"), client.DryRunAll)
				if got := warnings.Take(); err == nil && !strings.Contains(got, text) {
					err = fmt.Errorf("the Service was not reviewed: warnings %q", got)
				}
				if err != nil && ctx.Err() == nil {
					load.mu.Lock()
					load.wrong = append(load.wrong, fmt.Errorf("request %d: %w", load.served.Load(), err))
					load.mu.Unlock()
				}
				load.served.Add(1)
			}
		})
	}
	t.Cleanup(stop)
	return load
}

func (l *writing) goesOn(t *testing.T) {
	t.Helper()
	since := l.served.Load()
	eventually(t, func(context.Context) error {
		if done := l.served.Load() - since; done < 200 {
			return fmt.Errorf("%d requests were served", done)
		}
		return nil
	})
}

func (l *writing) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.people.Wait()
	t.Logf("%d requests, %d with a wrong response", l.served.Load(), len(l.wrong))
	for _, err := range l.wrong[:min(len(l.wrong), 5)] {
		t.Error(err)
	}
}
