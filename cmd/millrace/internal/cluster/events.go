// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/timeline"
)

// eventsPerPage is the page size of lists of Events.
const eventsPerPage = 500

// EventQuery selects a Service and a period.
type EventQuery struct {
	Namespace, Service string
	From, To           time.Time
}

// EventsOf returns the Events about a Service, its VIPs, EndpointSlices and pods, nodes and peers. Deleted
// pods are recognized by their stem. The error of a Service that does not exist comes with its Events.
func EventsOf(ctx context.Context, config Config, query EventQuery) ([]timeline.Event, error) {
	namespace, service := query.Namespace, query.Service
	restConfig, clients, err := config.clients()
	if err != nil {
		return nil, err
	}
	_, err = clients.CoreV1().Services(namespace).Get(ctx, service, metav1.GetOptions{})
	var missing error
	if apierrors.IsNotFound(err) {
		missing = config.noService(ctx, clients, types.NamespacedName{Namespace: namespace, Name: service})
	}
	about := subjects{"Service": {service: true}, "EndpointSlice": {}, "Pod": {}, "VIP": {}}
	slices, err := clients.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service,
	})
	if err != nil {
		return nil, config.explain(restConfig.Host, err)
	}
	about.addSlices(slices.Items)
	vips, err := VIPs(ctx, config)
	if err != nil && !errors.Is(err, ErrForbidden) {
		return nil, err
	}
	about.addVIPs(vips, namespace, service)
	found, err := selectEvents(ctx, clients, query, about, namespace)
	if err != nil {
		return nil, config.explain(restConfig.Host, err)
	}
	if namespace != metav1.NamespaceDefault {
		// Events about nodes and peers are in the default namespace.
		more, err := selectEvents(ctx, clients, query, about, metav1.NamespaceDefault)
		if err != nil && !apierrors.IsForbidden(err) {
			return nil, config.explain(restConfig.Host, err)
		}
		found = append(found, more...)
	}
	return found, missing
}

// selectEvents returns the Events of a namespace about the subjects, in the query's period.
func selectEvents(
	ctx context.Context, clients kubernetes.Interface, query EventQuery, about subjects, in string,
) (found []timeline.Event, err error) {
	options := metav1.ListOptions{Limit: eventsPerPage}
	for {
		events, err := clients.CoreV1().Events(in).List(ctx, options)
		if err != nil {
			return nil, err
		}
		for i := range events.Items {
			event := &events.Items[i]
			if at := timeOf(event); about.has(event, query.Namespace) && !at.Before(query.From) && !at.After(query.To) {
				found = append(found, convertEvent(event, at))
			}
		}
		if options.Continue = events.Continue; options.Continue == "" {
			return found, nil
		}
	}
}

func (c Config) noService(ctx context.Context, clients kubernetes.Interface, name types.NamespacedName) error {
	missing := &apierror.Missing{Kind: "Service", Name: name.String()}
	services, err := clients.CoreV1().Services(name.Namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		for i := range services.Items {
			missing.Names = append(missing.Names, name.Namespace+"/"+services.Items[i].Name)
		}
	}
	return missing
}

// subjects are names by kind, for pods stems.
type subjects map[string]map[string]bool

func (s subjects) addSlices(slices []discoveryv1.EndpointSlice) {
	for i := range slices {
		s["EndpointSlice"][slices[i].Name] = true
		for _, endpoint := range slices[i].Endpoints {
			if pod := endpoint.TargetRef; pod != nil && pod.Kind == "Pod" {
				s["Pod"][podStem(pod.Name)] = true
			}
		}
	}
}

func (s subjects) addVIPs(vips []millracev1beta1.VIP, namespace, service string) {
	for i := range vips {
		for _, claim := range vips[i].Spec.Claims {
			if claim.Namespace == namespace && claim.Name == service {
				s["VIP"][vips[i].Name] = true
			}
		}
	}
}

// podStem returns the name of a pod without the suffix that its controller generated.
func podStem(name string) string {
	if at := strings.LastIndexByte(name, '-'); at > 0 {
		return name[:at]
	}
	return name
}

// has includes Events about objects that all Services depend on.
func (s subjects) has(event *corev1.Event, namespace string) bool {
	of := event.InvolvedObject
	switch of.Kind {
	case "Node", "LBNode", "LBNodeReport", "LBPeer", "VIPAdvertisement":
		return true
	case "VIP":
		return s["VIP"][of.Name]
	case "Pod":
		return of.Namespace == namespace && s["Pod"][podStem(of.Name)]
	default:
		return of.Namespace == namespace && s[of.Kind][of.Name]
	}
}

func timeOf(event *corev1.Event) time.Time {
	switch {
	case event.Series != nil:
		return event.Series.LastObservedTime.Time
	case !event.LastTimestamp.IsZero():
		return event.LastTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	default:
		return event.CreationTimestamp.Time
	}
}

func convertEvent(event *corev1.Event, at time.Time) timeline.Event {
	of := event.InvolvedObject
	name := of.Name
	if of.Namespace != "" {
		name = of.Namespace + "/" + of.Name
	}
	return timeline.Event{
		Time: at.UTC(), About: fmt.Sprintf("%s %s", of.Kind, name), Type: event.Type, Reason: event.Reason, Message: event.Message,
		Count: event.Count,
	}
}
