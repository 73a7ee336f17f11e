// SPDX-License-Identifier: Apache-2.0

// Package operator implements the control plane that assigns VIPs to Services and IDs to nodes, rotates the
// tunnel key and validates objects.
package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/api/serving/managed"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/controller"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/internal/live"
	"github.com/millrace-lb/millrace/operator/internal/nodes"
	"github.com/millrace-lb/millrace/operator/internal/rotation"
	"github.com/millrace-lb/millrace/operator/internal/routing"
	"github.com/millrace-lb/millrace/operator/internal/webhook"
)

const leaseName = "millrace-operator"

// reconcileTimeout bounds a reconciliation that gets no answer from the API server.
const reconcileTimeout = time.Minute

// Config configures the operator.
type Config struct {
	REST *rest.Config
	// LeaderElect enables leader election between replicas.
	LeaderElect bool
	// LeaderElectionNamespace is that of the Lease and of the ConfigMap of node IDs; default: the pod's.
	LeaderElectionNamespace string
	// LoadBalancerClass is the loadBalancerClass of the served Services; default millrace.io/lb.
	LoadBalancerClass string
	// DefaultLoadBalancer also serves Services without a loadBalancerClass.
	DefaultLoadBalancer bool
	// AnnotationsOf lists other load balancers whose annotations are read, too, separated by commas.
	AnnotationsOf string
	// AdoptOnly assigns Services only the addresses in their status.
	AdoptOnly bool
	// ReleaseDelay is how long a released address is announced with GRACEFUL_SHUTDOWN (RFC 8326), or 0.
	ReleaseDelay time.Duration
	// MetricsAddress and ProbeAddress are "host:port" to listen on; "0" disables them.
	MetricsAddress string
	ProbeAddress   string
	// MetricsSecure serves metrics over TLS to clients that the API server authorizes, else to all.
	MetricsSecure bool
	// MetricsCertDir contains tls.crt and tls.key; without them a self-signed certificate is used.
	MetricsCertDir string
	// WebhookAddress is "host:port" of the admission webhooks; "0" disables them.
	WebhookAddress string
	// WebhookCertDir contains tls.crt and tls.key of the webhooks.
	WebhookCertDir string
	// WebhookSelfSigned makes the leader renew that certificate in the mounted Secret, and set caBundle.
	WebhookSelfSigned bool
	// LiveSelfSigned makes the leader renew the certificates of live.millrace.io and set caBundle.
	LiveSelfSigned bool
	// TunnelKeyLifetime is the age at which the tunnel key is replaced, or 0 for never.
	TunnelKeyLifetime time.Duration
	// TunnelKeyNodeTimeout is how long a key rotation waits for a node that does not confirm it.
	TunnelKeyNodeTimeout time.Duration
}

// Run runs the operator until the context ends, or returns an error if it loses leadership.
func Run(ctx context.Context, configuration Config, logger logr.Logger) error {
	if class := configuration.LoadBalancerClass; class != "" {
		if err := desired.ParseClassName(class); err != nil {
			return fmt.Errorf("--load-balancer-class: %w", err)
		}
	}
	others, err := convert.ParseAnnotations(configuration.AnnotationsOf)
	if err != nil {
		return fmt.Errorf("--annotations-of: %w", err)
	}
	reading := convert.Parser{Others: others, AdoptOnly: configuration.AdoptOnly}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), millracev1beta1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("build the scheme: %w", err)
	}
	mgr, err := ctrl.NewManager(configuration.REST, managerOptions(configuration, scheme, logger))
	if err != nil {
		return fmt.Errorf("create the manager: %w", err)
	}
	if err := controller.Setup(ctx, mgr, controller.Options{
		LoadBalancerClass:   configuration.LoadBalancerClass,
		DefaultLoadBalancer: configuration.DefaultLoadBalancer,
		Parser:              reading,
		ReleaseDelay:        configuration.ReleaseDelay,
	}); err != nil {
		return err
	}
	if err := routing.Setup(mgr); err != nil {
		return err
	}
	if err := nodes.Setup(ctx, mgr, nodes.Options{
		Namespace: ownNamespace(configuration.LeaderElectionNamespace),
		TunnelKey: rotation.Settings{
			Lifetime: configuration.TunnelKeyLifetime, NodeTimeout: configuration.TunnelKeyNodeTimeout,
		},
	}); err != nil {
		return err
	}
	if err := setupServers(mgr, configuration, reading); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the operator: %w", err)
	}
	return nil
}

func setupServers(mgr ctrl.Manager, configuration Config, reading convert.Parser) error {
	if err := errors.Join(
		managed.AddProbes(mgr, configuration.ProbeAddress, "caches", synced(mgr.GetCache())),
		managed.AddMetrics(mgr, managed.Metrics{
			Address: configuration.MetricsAddress, Secure: configuration.MetricsSecure, CertDir: configuration.MetricsCertDir,
		})); err != nil {
		return err
	}
	if address := configuration.WebhookAddress; address != "" && address != "0" {
		if err := webhook.Setup(mgr, webhook.Options{
			Address: address, CertDir: configuration.WebhookCertDir,
			Class:     desired.Class{Name: configuration.LoadBalancerClass, IsDefault: configuration.DefaultLoadBalancer},
			Namespace: ownNamespace(configuration.LeaderElectionNamespace),
			Parser:    reading,
		}); err != nil {
			return fmt.Errorf("set up the webhook: %w", err)
		}
	}
	if configuration.WebhookSelfSigned {
		if err := webhook.KeepCertificate(mgr, ownNamespace(configuration.LeaderElectionNamespace)); err != nil {
			return fmt.Errorf("set up the certificate of the webhook: %w", err)
		}
	}
	if configuration.LiveSelfSigned {
		if err := live.KeepCertificates(mgr, ownNamespace(configuration.LeaderElectionNamespace)); err != nil {
			return fmt.Errorf("set up the certificates of the aggregated API: %w", err)
		}
	}
	return nil
}

func managerOptions(configuration Config, scheme *runtime.Scheme, logger logr.Logger) ctrl.Options {
	return ctrl.Options{
		Scheme:                  scheme,
		Logger:                  logger,
		LeaderElection:          configuration.LeaderElect,
		LeaderElectionID:        leaseName,
		LeaderElectionNamespace: configuration.LeaderElectionNamespace,
		// Run returns right after the manager stopped, so the Lease can be released early.
		LeaderElectionReleaseOnCancel: true,
		// Package managed serves metrics.
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{ReconciliationTimeout: reconcileTimeout},
		Client:     client.Options{FieldOwner: control.FieldOwner},
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Node{}:                  {Transform: controller.TransformNode},
				&millracev1beta1.LBNodeReport{}: {Transform: controller.TransformReport},
				// The operator may read only one Secret.
				&corev1.Secret{}: {
					Namespaces: map[string]cache.Config{nodes.TunnelKeySecret().Namespace: {}},
					Field:      fields.OneTermEqualSelector(metav1.ObjectNameField, nodes.TunnelKeySecret().Name),
				},
			},
		},
	}
}

// ownNamespace returns the configured namespace, else the pod's, else that of our manifests.
func ownNamespace(configured string) string {
	const mounted = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	if configured != "" {
		return configured
	}
	if content, err := os.ReadFile(mounted); err == nil {
		return strings.TrimSpace(string(content))
	}
	return "millrace-system"
}

// synced returns a probe that fails until the caches have synced.
func synced(informers cache.Cache) healthz.Checker {
	return func(request *http.Request) error {
		ctx, cancel := context.WithTimeout(request.Context(), 100*time.Millisecond)
		defer cancel()
		if !informers.WaitForCacheSync(ctx) {
			return errors.New("the caches are not synced with the API server yet")
		}
		return nil
	}
}
