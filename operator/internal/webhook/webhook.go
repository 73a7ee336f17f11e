// SPDX-License-Identifier: Apache-2.0

// Package webhook warns of valid objects without the intended effect, and defaults Services in namespaces
// with a label. It never rejects an object; after an error it accepts without warnings.
package webhook

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/api/serving"
	"github.com/millrace-lb/millrace/api/serving/managed"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/review"
)

const (
	warningsPath = "/warnings"
	defaultsPath = "/service-defaults"
)

// connections leaves room for the API servers of a large control plane beside other clients.
var connections = serving.Limits{Connections: 128, PerSource: 32}

// requests bounds memory: a review has at most two objects of 1 MiB each.
var requests = serving.Requests{BodyBytes: 3 << 20, InFlight: 8, PerSource: 2}

// Options configures the webhooks.
type Options struct {
	// Address is "host:port" to listen on.
	Address string
	// CertDir contains tls.crt and tls.key, which are read for each connection and may appear later.
	CertDir string
	// Namespace is that of the Service, which events about the certificate refer to.
	Namespace string
	Class     desired.Class
	Parser    convert.Parser
}

// Setup adds the webhooks to a manager. All replicas serve them.
func Setup(mgr ctrl.Manager, options Options) error {
	h := &handler{
		reader:  mgr.GetClient(),
		live:    mgr.GetAPIReader(),
		mapper:  mgr.GetRESTMapper(),
		decoder: admission.NewDecoder(mgr.GetScheme()),
		class:   options.Class,
		parser:  options.Parser,
		logger:  mgr.GetLogger().WithName("webhook"),
	}
	certificate := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(filepath.Join(options.CertDir, "tls.crt"), filepath.Join(options.CertDir, "tls.key"))
		return &pair, err
	}
	// The server of controller-runtime only instruments the handlers.
	server := webhook.NewServer(webhook.Options{})
	server.Register(warningsPath, &webhook.Admission{Handler: h})
	server.Register(defaultsPath, &webhook.Admission{Handler: admission.HandlerFunc(h.setDefaults)})
	// On replicas that do not lead, the caches would be empty at the first request.
	filled := manager.RunnableFunc(func(ctx context.Context) error {
		if _, err := h.state(ctx); err != nil {
			h.logger.Error(err, "Failed to fill the caches; the first requests may get no warnings")
		}
		return nil
	})
	inspector, err := newInspector(mgr, options)
	if err != nil {
		return fmt.Errorf("register the metrics of the webhook: %w", err)
	}
	return errors.Join(managed.Add(mgr, managed.Server{
		Name: "webhook", Address: options.Address, Limits: connections,
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: certificate},
	}, serving.LimitRequests(server.WebhookMux(), requests)),
		mgr.Add(allReplicas{filled}), mgr.Add(allReplicas{inspector}))
}

// allReplicas also runs on replicas that do not lead.
type allReplicas struct{ manager.Runnable }

func (allReplicas) NeedLeaderElection() bool { return false }

type handler struct {
	reader client.Reader
	// live reads past the caches, which have no Secrets.
	live    client.Reader
	mapper  meta.RESTMapper
	decoder admission.Decoder
	class   desired.Class
	parser  convert.Parser
	logger  logr.Logger
}

func (h *handler) Handle(ctx context.Context, request admission.Request) admission.Response {
	warnings, err := h.warnings(ctx, request)
	if err != nil {
		// The request is accepted, as without the webhook.
		h.logger.Error(err, "Failed to compute warnings", "kind", request.Kind.Kind, "namespace", request.Namespace, "name", request.Name)
	}
	return admission.Allowed("").WithWarnings(warnings...)
}

func (h *handler) warnings(ctx context.Context, request admission.Request) ([]string, error) {
	if request.Kind.Kind == "Service" {
		return h.ofService(ctx, request)
	}
	object := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(request.Object.Raw, object); err != nil {
		return nil, fmt.Errorf("reading the metadata: %w", err)
	}
	warnings, err := h.ofSpec(ctx, request)
	return append(review.Keys(request.Kind.Kind, object), warnings...), err
}

func (h *handler) ofSpec(ctx context.Context, request admission.Request) ([]string, error) {
	switch request.Kind.Kind {
	case "VIPPool":
		return h.ofPool(ctx, request)
	case "VIPAdvertisement":
		advertisement := &millracev1beta1.VIPAdvertisement{}
		state, err := h.read(ctx, request, advertisement)
		if err != nil {
			return nil, err
		}
		return append(review.Messages(review.Advertisement(advertisement, state)), review.Families(advertisement, state)...), nil
	case "VIP":
		vip := &millracev1beta1.VIP{}
		state, err := h.read(ctx, request, vip)
		if err != nil {
			return nil, err
		}
		return review.Messages(review.VIP(vip, state)), nil
	case "LBPeer":
		return h.ofPeer(ctx, request)
	default:
		return nil, nil
	}
}

// read decodes the object and returns the cluster's objects.
func (h *handler) read(ctx context.Context, request admission.Request, object runtime.Object) (*review.State, error) {
	if err := h.decoder.Decode(request, object); err != nil {
		return nil, fmt.Errorf("reading the %s: %w", request.Kind.Kind, err)
	}
	return h.state(ctx)
}

func (h *handler) ofPool(ctx context.Context, request admission.Request) ([]string, error) {
	pool := &millracev1beta1.VIPPool{}
	state, err := h.read(ctx, request, pool)
	if err == nil && (pool.Spec.PerNamespace != nil || pool.Spec.NamespaceSelector != nil) {
		state.Namespaces, err = h.namespaces(ctx)
	}
	if err != nil {
		return nil, err
	}
	if parsed, problems := desired.ParsePool(pool); len(problems) == 0 && len(parsed.Added(pool).Ranges()) > 0 {
		if state.Endpoints, err = control.EndpointsWithin(ctx, h.live, parsed.Added(pool)); err != nil {
			return nil, err
		}
	}
	return review.Pool(pool, state), nil
}

func (h *handler) namespaces(ctx context.Context) (map[string]labels.Set, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if err := h.reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Namespaces: %w", err)
	}
	found := make(map[string]labels.Set, len(list.Items))
	for i := range list.Items {
		found[list.Items[i].Name] = list.Items[i].Labels
	}
	return found, nil
}

func (h *handler) ofPeer(ctx context.Context, request admission.Request) ([]string, error) {
	peer := &millracev1beta1.LBPeer{}
	state, err := h.read(ctx, request, peer)
	if err != nil {
		return nil, err
	}
	warnings := review.Messages(review.Peer(peer, state))
	reference := peer.Spec.PasswordSecretRef
	if reference == nil {
		return warnings, nil
	}
	secret := &corev1.Secret{}
	err = h.live.Get(ctx, client.ObjectKey{Namespace: millracev1beta1.BGPNamespace, Name: reference.Name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		secret = nil
	case err != nil:
		return warnings, fmt.Errorf("reading Secret %s/%s: %w", millracev1beta1.BGPNamespace, reference.Name, err)
	}
	return append(warnings, review.Password(peer, secret)...), nil
}

func (h *handler) ofService(ctx context.Context, request admission.Request) ([]string, error) {
	service, before, err := h.services(request)
	if err != nil {
		return nil, err
	}
	if before != nil && hasSameRequest(before, service) {
		return nil, nil
	}
	if !h.class.Serves(service) {
		services := &corev1.ServiceList{}
		if err := h.reader.List(ctx, services, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing Services: %w", err)
		}
		return review.Metadata(h.class, h.parser, service, services.Items), nil
	}
	metadata := review.Metadata(h.class, h.parser, service, nil)
	namespace, state, err := h.namespaceState(ctx, request.Namespace)
	if err != nil {
		return metadata, err
	}
	assigned, warnings := review.Service(service, namespace, state)
	warnings = append(metadata, warnings...)
	if request.DryRun != nil && *request.DryRun {
		return append(assigned, warnings...), nil
	}
	return warnings, nil
}

// services returns both versions of a Service; the old one is nil for a create.
func (h *handler) services(request admission.Request) (service, before *corev1.Service, err error) {
	service = &corev1.Service{}
	if err := h.decoder.Decode(request, service); err != nil {
		return nil, nil, fmt.Errorf("decode the Service: %w", err)
	}
	if request.Operation == admissionv1.Update {
		before = &corev1.Service{}
		if err := h.decoder.DecodeRaw(request.OldObject, before); err != nil {
			return nil, nil, fmt.Errorf("decode the old Service: %w", err)
		}
	}
	return service, before, nil
}

func (h *handler) namespaceState(ctx context.Context, name string) (labels.Set, *review.State, error) {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := h.reader.Get(ctx, client.ObjectKey{Name: name}, namespace); err != nil {
		return nil, nil, fmt.Errorf("read Namespace %s: %w", name, err)
	}
	state, err := h.state(ctx)
	return namespace.Labels, state, err
}

func hasSameRequest(a, b *corev1.Service) bool {
	return equality.Semantic.DeepEqual(a.Spec, b.Spec) && equality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Annotations, b.Annotations)
}

func (h *handler) state(ctx context.Context) (*review.State, error) {
	pools, vips := &millracev1beta1.VIPPoolList{}, &millracev1beta1.VIPList{}
	peers, advertisements := &millracev1beta1.LBPeerList{}, &millracev1beta1.VIPAdvertisementList{}
	nodes, reports := &corev1.NodeList{}, &millracev1beta1.LBNodeReportList{}
	for _, list := range []client.ObjectList{pools, vips, peers, advertisements, nodes, reports} {
		if err := h.reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	state := &review.State{Parser: h.parser, Pools: pools.Items, VIPs: vips.Items, Peers: peers.Items, Advertisements: advertisements.Items}
	state.Nodes, state.Interfaces = nodes.Items, review.Uplinks(reports.Items)
	state.Occupied = review.Occupied(nodes.Items, peers.Items, nil)
	networks, err := h.serviceNetworks(ctx)
	state.Occupied = append(state.Occupied, networks...)
	return state, err
}

// serviceNetworks uses ServiceCIDRs or, before Kubernetes 1.33, existing Services.
func (h *handler) serviceNetworks(ctx context.Context) ([]desired.Occupied, error) {
	var occupied []desired.Occupied
	kind := networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	_, err := h.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	switch {
	case meta.IsNoMatchError(err):
		services := &corev1.ServiceList{}
		if err := h.reader.List(ctx, services, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list Services: %w", err)
		}
		for i := range services.Items {
			occupied = append(occupied, desired.OccupiedByService(&services.Items[i])...)
		}
	case err != nil:
		return nil, fmt.Errorf("discover ServiceCIDRs: %w", err)
	default:
		networks := &networkingv1.ServiceCIDRList{}
		if err := h.reader.List(ctx, networks, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list ServiceCIDRs: %w", err)
		}
		for i := range networks.Items {
			occupied = append(occupied, desired.OccupiedByServiceCIDR(&networks.Items[i])...)
		}
	}
	return occupied, nil
}
