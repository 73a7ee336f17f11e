// SPDX-License-Identifier: Apache-2.0

// Package server implements the aggregated API server. It delegates authentication and authorization to the
// cluster's API server.
package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/api/serving"
	"github.com/millrace-lb/millrace/liveapi/internal/openapi"
	liverest "github.com/millrace-lb/millrace/liveapi/internal/rest"
)

// connections is sufficient for the agents of 5,000 nodes and the replicas of the cluster's API server.
var connections = serving.Limits{Connections: 6144, PerSource: 16}

// Options configures a Server.
type Options struct {
	// Address is the address to listen on, "host:port".
	Address string
	// CertDir contains tls.crt and tls.key, which are reloaded when they change.
	CertDir string
	// Kubeconfig is the file for the API server that authenticates and authorizes requests; empty selects the
	// pod's ServiceAccount.
	Kubeconfig string
	Storage    map[string]rest.Storage
	// Synced waits until the caches are synced. It does not wait for agents, because an unavailable API
	// blocks the deletion of all namespaces.
	Synced func(context.Context) bool
	// Streams are handlers by path, whose requests have no time limit.
	Streams        map[string]http.Handler
	StreamAudience string
}

// Server serves live.millrace.io.
type Server struct {
	prepared interface{ RunWithContext(context.Context) error }
	https    *bounded
}

// New returns a server. Its listener is already open.
func New(options Options) (*Server, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(livev1alpha1.AddToScheme(scheme), liverest.AddFields(scheme)); err != nil {
		return nil, fmt.Errorf("build the scheme: %w", err)
	}
	// Register the kinds of lists, watches and errors that all API servers serve.
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	scheme.AddUnversionedTypes(schema.GroupVersion{Version: "v1"},
		&metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	if err := scheme.SetVersionPriority(livev1alpha1.GroupVersion); err != nil {
		return nil, fmt.Errorf("build the scheme: %w", err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	configuration := genericapiserver.NewConfig(codecs)
	configuration.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	configuration.EnableProfiling = false
	configuration.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(
		openapi.GetOpenAPIDefinitions, openapinamer.NewDefinitionNamer(scheme))
	configuration.OpenAPIV3Config.Info.Title = "Millrace live state"
	configuration.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(
		openapi.GetOpenAPIDefinitions, openapinamer.NewDefinitionNamer(scheme))
	configuration.OpenAPIConfig.Info.Title = "Millrace live state"
	lasts := configuration.LongRunningFunc
	configuration.LongRunningFunc = func(r *http.Request, info *request.RequestInfo) bool {
		return options.Streams[r.URL.Path] != nil || lasts(r, info)
	}
	configuration.BuildHandlerChainFunc = options.chain
	https, err := listen(options)
	if err != nil {
		return nil, err
	}
	if err := apply(https, options, configuration); err != nil {
		return nil, err
	}
	generic, err := configuration.Complete(nil).New("millrace-liveapi", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("create the API server: %w", err)
	}
	for path, handler := range options.Streams {
		generic.Handler.NonGoRestfulMux.Handle(path, handler)
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(livev1alpha1.GroupVersion.Group, scheme, runtime.NewParameterCodec(scheme), codecs)
	group.VersionedResourcesStorageMap[livev1alpha1.GroupVersion.Version] = options.Storage
	if err := generic.InstallAPIGroup(&group); err != nil {
		return nil, fmt.Errorf("add the resources: %w", err)
	}
	if err := generic.AddReadyzChecks(healthz.NamedCheck("objects", func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
		defer cancel()
		if !options.Synced(ctx) {
			return errors.New("the cache of Services, EndpointSlices and LBNodes is not synced yet")
		}
		return nil
	})); err != nil {
		return nil, fmt.Errorf("add the readiness probe: %w", err)
	}
	prepared := generic.PrepareRun()
	https.server.Handler = generic.Handler
	return &Server{prepared: prepared, https: https}, nil
}

// chain builds the handler chain. It authenticates requests for Streams with their own audience.
func (o Options) chain(api http.Handler, c *genericapiserver.Config) http.Handler {
	chain := genericapiserver.DefaultBuildHandlerChain(api, c)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if o.Streams[r.URL.Path] != nil {
			r = r.WithContext(authenticator.WithAudiences(r.Context(), authenticator.Audiences{o.StreamAudience}))
		}
		chain.ServeHTTP(w, r)
	})
}

func apply(https *bounded, options Options, configuration *genericapiserver.Config) error {
	secure := genericoptions.NewSecureServingOptions()
	secure.Listener = &unused{address: https.listener.Addr(), closed: make(chan struct{})}
	secure.ServerCert.CertKey.CertFile = filepath.Join(options.CertDir, "tls.crt")
	secure.ServerCert.CertKey.KeyFile = filepath.Join(options.CertDir, "tls.key")
	if err := secure.WithLoopback().ApplyTo(&configuration.SecureServing, &configuration.LoopbackClientConfig); err != nil {
		return fmt.Errorf("listen on %s: %w", options.Address, err)
	}
	authentication := genericoptions.NewDelegatingAuthenticationOptions()
	authentication.RemoteKubeConfigFile = options.Kubeconfig
	if err := authentication.ApplyTo(&configuration.Authentication, configuration.SecureServing, configuration.OpenAPIConfig); err != nil {
		return fmt.Errorf("configure authentication by the API server: %w", err)
	}
	authorization := genericoptions.NewDelegatingAuthorizationOptions()
	authorization.RemoteKubeConfigFile = options.Kubeconfig
	if err := authorization.ApplyTo(&configuration.Authorization); err != nil {
		return fmt.Errorf("configure authorization by the API server: %w", err)
	}
	return nil
}

// Run serves until the context ends.
func (s *Server) Run(ctx context.Context) error {
	return s.https.run(ctx, s.prepared.RunWithContext)
}
