// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millrace-lb/millrace/operator/internal/certificate"
)

// Reasons of the webhook's certificate: events of the Service millrace-webhook. The API server does not
// report that it rejects a certificate.
const (
	// reasonMissing: find out why the Secret millrace-webhook is absent or invalid.
	reasonMissing = "CertificateMissing"
	// reasonExpired: renewed automatically with --webhook-self-signed; otherwise renew it.
	reasonExpired = "CertificateExpired"
	// reasonNotTrusted: the API server does not trust the certificate. Corrected automatically with
	// --webhook-self-signed; otherwise correct caBundle.
	reasonNotTrusted = "CertificateNotTrusted"
	// reasonTrusted: the certificate is trusted again.
	reasonTrusted = "CertificateTrusted"
	// reasonRestored: the operator corrected caBundle. Find out which program overwrites it.
	reasonRestored = "CABundleRestored"
)

// A problem is why the API server rejects the certificate; the zero value means no problem.
type problem struct{ reason, message string }

// mountTime is how long a kubelet may take to mount a new Secret.
const mountTime = 3 * time.Minute

// An inspector checks the certificate mounted in this replica, because the API server silently proceeds
// without warnings if it does not trust it.
type inspector struct {
	live            client.Reader
	directory       string
	emitter         eventEmitter
	logger          logr.Logger
	started         time.Time
	reported        problem
	expiry, trusted prometheus.Gauge
}

func newInspector(mgr ctrl.Manager, options Options) (*inspector, error) {
	i := &inspector{
		live: mgr.GetAPIReader(), directory: options.CertDir, emitter: newEventEmitter(mgr, options.Namespace),
		logger: mgr.GetLogger().WithName("webhook"), started: time.Now(),
	}
	i.expiry, i.trusted = newGauges()
	return i, errors.Join(metrics.Registry.Register(i.expiry), metrics.Registry.Register(i.trusted))
}

func newGauges() (expiry, trusted prometheus.Gauge) {
	return prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_webhook_certificate_expiry_timestamp_seconds",
			Help: "Expiry time of the webhook certificate that this replica serves, in seconds since the epoch; 0: no certificate.",
		}), prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_webhook_certificate_trusted",
			Help: "1 if the API server trusts the webhook certificate that this replica serves, otherwise 0.",
		})
}

func (i *inspector) Start(ctx context.Context) error {
	poll(ctx, func() { i.inspect(ctx) })
	return nil
}

func (i *inspector) inspect(ctx context.Context) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(i.directory, "tls.crt"), filepath.Join(i.directory, "tls.key"))
	if err != nil {
		i.expiry.Set(0)
		if !errors.Is(err, fs.ErrNotExist) || time.Since(i.started) > mountTime {
			i.report(ctx, problem{reasonMissing, fmt.Sprintf("the webhook certificate cannot be read: %v", err)})
		}
		return
	}
	i.expiry.Set(float64(pair.Leaf.NotAfter.Unix()))
	configurations, err := readConfigurations(ctx, i.live)
	if err != nil {
		if ctx.Err() == nil {
			i.logger.Error(err, "Failed to read the webhook configurations; retrying", "after", checkInterval.String())
		}
		return
	}
	i.report(ctx, findProblem(time.Now(), &pair, configurations))
}

func findProblem(now time.Time, pair *tls.Certificate, configurations []configuration) problem {
	for _, configuration := range configurations {
		for _, call := range configuration.calls {
			err := certificate.Verify(now, serverName(call), pair, call.CABundle)
			if err == nil {
				continue
			}
			reason := reasonNotTrusted
			if errors.Is(err, certificate.ErrExpired) {
				reason = reasonExpired
			}
			return problem{reason, fmt.Sprintf("the webhook certificate cannot be verified by caBundle of the %s %s: %v",
				configuration.kind, configuration.name, err)}
		}
	}
	return problem{}
}

func (i *inspector) report(ctx context.Context, found problem) {
	none := found == problem{}
	i.trusted.Set(0)
	if none {
		i.trusted.Set(1)
	}
	if found == i.reported {
		return
	}
	i.reported = found
	replica, _ := os.Hostname()
	if none {
		i.logger.Info("The API server trusts the webhook certificate")
		i.emitter.event(ctx, corev1.EventTypeNormal, reasonTrusted, "Inspect", replica+": the API server trusts the webhook certificate")
		return
	}
	i.logger.Info("The API server shows no warnings", "reason", found.reason, "message", found.message)
	i.emitter.event(ctx, corev1.EventTypeWarning, found.reason, "Inspect", replica+": the API server shows no warnings: "+found.message)
}

type eventEmitter struct {
	services  client.Reader
	recorder  events.EventRecorder
	namespace string
}

func newEventEmitter(mgr ctrl.Manager, namespace string) eventEmitter {
	return eventEmitter{services: mgr.GetClient(), recorder: mgr.GetEventRecorder("millrace-operator"), namespace: namespace}
}

func (t eventEmitter) event(ctx context.Context, severity, reason, action, message string) {
	service := &corev1.Service{}
	// If the API server uses a URL, there is no Service, and only the log has the problem.
	if err := t.services.Get(ctx, client.ObjectKey{Namespace: t.namespace, Name: serviceName}, service); err == nil {
		t.recorder.Eventf(service, nil, severity, reason, action, "%s", message)
	}
}
