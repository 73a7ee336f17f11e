// SPDX-License-Identifier: Apache-2.0

package nack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millrace-lb/millrace/gateway/distribution/server"
)

const (
	// coalesceTime delays a pass to coalesce acknowledgements.
	coalesceTime = 100 * time.Millisecond
	retry        = 5 * time.Second
)

var rejecting = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "millrace_gateway_rejecting_proxies",
	Help: "Proxies connected to this replica that reject resources of their configuration and serve all others.",
}, []string{"owner"})

func init() { metrics.Registry.MustRegister(rejecting) }

// Reporter writes rejections to the annotations of proxy Deployments. Every replica runs one.
type Reporter struct {
	Client client.Client
	// Proxies returns the connected proxies, Deployments the proxy Deployment of each owner.
	Proxies     func() []server.Proxy
	Deployments func() map[string]types.NamespacedName
	Log         logr.Logger

	wake chan struct{}
}

// Prepare initializes the Reporter.
func (r *Reporter) Prepare() { r.wake = make(chan struct{}, 1) }

// Touch enqueues a pass.
func (r *Reporter) Touch() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica reports.
func (r *Reporter) NeedLeaderElection() bool { return false }

// Start runs passes until the context ends.
func (r *Reporter) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(coalesceTime):
		}
		if err := r.pass(ctx); err != nil && ctx.Err() == nil {
			r.Log.Error(err, "report rejected configurations, retrying", "in", retry.String())
			time.AfterFunc(retry, r.Touch)
		}
	}
}

func (r *Reporter) pass(ctx context.Context) error {
	connected := map[string][]server.Proxy{}
	for _, proxy := range r.Proxies() {
		connected[proxy.Owner] = append(connected[proxy.Owner], proxy)
	}
	rejecting.Reset()
	var problems []error
	for owner, at := range r.Deployments() {
		count := 0
		for _, proxy := range connected[owner] {
			if proxy.Refusal != "" {
				count++
			}
		}
		rejecting.WithLabelValues(owner).Set(float64(count))
		problems = append(problems, r.report(ctx, at, connected[owner]))
	}
	return errors.Join(problems...)
}

func (r *Reporter) report(ctx context.Context, at types.NamespacedName, proxies []server.Proxy) error {
	deployment := &appsv1.Deployment{}
	if err := r.Client.Get(ctx, at, deployment); err != nil {
		return client.IgnoreNotFound(err)
	}
	var unknown error
	written := Read(deployment)
	wanted := nextRejection(written, proxies, func(pod string) bool {
		namespace, name, _ := strings.Cut(pod, "/")
		found := &metav1.PartialObjectMetadata{}
		found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		err := r.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, found)
		unknown = client.IgnoreNotFound(err)
		return err == nil
	})
	if unknown != nil || reflect.DeepEqual(wanted, written) {
		return unknown
	}
	before := client.MergeFrom(deployment.DeepCopy())
	if wanted.IsZero() {
		delete(deployment.Annotations, Annotation)
	} else {
		content, err := json.Marshal(wanted)
		if err != nil {
			return fmt.Errorf("encode the rejection of %s: %w", wanted.Proxy, err)
		}
		if deployment.Annotations == nil {
			deployment.Annotations = map[string]string{}
		}
		deployment.Annotations[Annotation] = string(content)
	}
	if err := r.Client.Patch(ctx, deployment, before); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotate the Deployment %s: %w", at, err)
	}
	return nil
}
