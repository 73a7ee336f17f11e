// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/source/relay"
)

const (
	protobufType = "application/vnd.kubernetes.protobuf"
	jsonType     = "application/json"
)

// Clients are the API server clients by API group.
type Clients struct {
	Core, Discovery, Millrace rest.Interface
	// Relay watches EndpointSlices instead of the API server; may be nil.
	Relay *relay.Client

	config *rest.Config
	// pinged pings over the connection of all clients except Relay; others uses separate connections.
	pinged, others pinger
	connections    *connections
}

// NewClients returns clients configured by a kubeconfig file or, if empty, the pod's service account. It sends
// no request. userAgent appears in the API server's audit log.
func NewClients(kubeconfig, userAgent string) (*Clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w (outside a pod, name a file with --kubeconfig)", err)
	}
	config.UserAgent = userAgent
	return NewClientsForConfig(config)
}

// UseRelay watches EndpointSlices through the relays at a URL. The directory contains the ca.crt of their
// certificates; token is the file with the agent's token for relays.
func (c *Clients) UseRelay(base, directory, token string, logger logr.Logger) (err error) {
	c.Relay, err = relay.NewClient(base, directory, token, c.config.UserAgent, logger)
	return err
}

// NewClientsForConfig returns clients for a configuration.
func NewClientsForConfig(config *rest.Config) (*Clients, error) {
	tracked, others := newConnections(), newConnections()
	httpClient, pinged, err := tracked.client(config)
	if err != nil {
		return nil, err
	}
	_, pingedAnew, err := others.client(config)
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, millracev1beta1.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	client := func(config *rest.Config, group schema.GroupVersion, path, contentType string) rest.Interface {
		if err != nil {
			return nil
		}
		forGroup := rest.CopyConfig(config)
		forGroup.GroupVersion = &group
		forGroup.APIPath = path
		forGroup.NegotiatedSerializer = codecs
		forGroup.ContentType = contentType
		forGroup.AcceptContentTypes = contentType + "," + jsonType
		var result *rest.RESTClient
		result, err = rest.RESTClientForConfigAndClient(forGroup, httpClient)
		return result
	}
	clients := &Clients{
		config:      config,
		connections: tracked,
		Core:        client(config, corev1.SchemeGroupVersion, "/api", protobufType),
		Discovery:   client(config, discoveryv1.SchemeGroupVersion, "/apis", protobufType),
		pinged:      pinged,
		others:      pingedAnew,
		// Custom resources do not support protobuf.
		Millrace: client(config, millracev1beta1.GroupVersion, "/apis", jsonType),
	}
	if err != nil {
		return nil, fmt.Errorf("create a client of %s: %w", config.Host, err)
	}
	return clients, nil
}
