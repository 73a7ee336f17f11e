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

// Clients talk to the API server, one for each API group that the agent needs.
type Clients struct {
	Core, Discovery, Millrace rest.Interface
	// Relay tells what changes of EndpointSlices, in place of the API server. It may be nil.
	Relay *relay.Client

	config *rest.Config
	// pinged asks over the connection of all clients but Relay, others over connections of its own.
	pinged, others pinger
	// connections are those of all clients but Relay.
	connections *connections
}

// NewClients returns clients by a kubeconfig file or, where it is empty, by
// the pod's service account. userAgent names the program in the API server's
// logs. Nothing is sent yet.
func NewClients(kubeconfig, userAgent string) (*Clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w (outside a pod, name a file with --kubeconfig)", err)
	}
	config.UserAgent = userAgent
	return NewClientsForConfig(config)
}

// UseRelay watches EndpointSlices at the relays of a URL. The directory has the ca.crt of their certificate, and
// token is the file of the agent's token for them.
func (c *Clients) UseRelay(base, directory, token string, logger logr.Logger) (err error) {
	c.Relay, err = relay.NewClient(base, directory, token, c.config.UserAgent, logger)
	return err
}

// NewClientsForConfig returns clients by a configuration.
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
		// Custom resources have no protobuf form.
		Millrace: client(config, millracev1beta1.GroupVersion, "/apis", jsonType),
	}
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", config.Host, err)
	}
	return clients, nil
}
