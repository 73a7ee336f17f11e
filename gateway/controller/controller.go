// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/serving"
	"github.com/millrace-lb/millrace/api/serving/managed"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/controller/internal/authentication"
	"github.com/millrace-lb/millrace/gateway/controller/internal/identity"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/controller/internal/nack"
	"github.com/millrace-lb/millrace/gateway/controller/internal/source"
	"github.com/millrace-lb/millrace/gateway/controller/internal/write"
	"github.com/millrace-lb/millrace/gateway/distribution/server"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// leaseName names the leader election Lease, the controller's Service and the Secret with its identity.
const leaseName = "millrace-gateway"

// Config configures the controller.
type Config struct {
	REST *rest.Config
	// LeaderElect enables leader election; it is required for more than one replica.
	LeaderElect bool
	// Namespace contains the controller, its Lease, its identity Secret and the proxies of IngressClasses.
	Namespace string
	// LoadBalancerClass is the class of the proxies' Services; defaults to millrace.io/lb.
	LoadBalancerClass string
	// ServeAddress is the "host:port" on which proxies fetch their configuration.
	ServeAddress string
	// ControllerAddress is the "host:port" of the controller for proxies; defaults to its Service's
	// cluster IP and port.
	ControllerAddress string
	// ProxyImage and ProxyPullPolicy apply to proxy containers. The default image is that of init
	// container lbproxy in PodName.
	ProxyImage      string
	PodName         string
	ProxyPullPolicy string
	// ProxyPullSecrets apply unless parameters specify any; without ProxyImage the controller pod's are used.
	ProxyPullSecrets []corev1.LocalObjectReference
	// ProxyCPU and ProxyMemory are resource requests, ProxyMemoryLimit is the limit.
	ProxyCPU, ProxyMemory, ProxyMemoryLimit resource.Quantity
	// NamespaceBytes limits one namespace's share of an owner's configuration, ProxyBytes the whole. They
	// default to 64 MiB and 256 MiB.
	NamespaceBytes, ProxyBytes resource.Quantity
	// APILossAfter is how long the API server may not answer before the controller is unready and
	// disconnects its proxies; defaults to 30 seconds.
	APILossAfter time.Duration
	// APISilenceAfter is the idle timeout of connections to the API server; defaults to three minutes.
	APISilenceAfter time.Duration
	// MetricsAddress and ProbeAddress are "host:port" to listen on; "0" disables the listener.
	MetricsAddress string
	ProbeAddress   string
	// MetricsSecure serves metrics over TLS to authorized clients, instead of over plain HTTP to all.
	MetricsSecure bool
	// MetricsCertDir contains tls.crt and tls.key; without them a self-signed certificate is used.
	MetricsCertDir string
}

// Run runs the controller. It returns nil when the context ends, and an error when leadership is lost.
func Run(ctx context.Context, configuration Config, logger logr.Logger) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), gatewayv1.Install(scheme), millracev1beta1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("build the scheme: %w", err)
	}
	api := withReadTimeout(configuration.REST, cmp.Or(configuration.APISilenceAfter, readTimeout))
	mgr, err := ctrl.NewManager(api, managerOptions(configuration, scheme, logger))
	if err != nil {
		return fmt.Errorf("create the manager: %w", err)
	}
	if configuration.ProxyImage == "" {
		if err := configuration.imageOfPod(ctx, mgr.GetAPIReader()); err != nil {
			return err
		}
	}
	c := &controller{config: configuration, mgr: mgr, log: logger}
	if err := c.setup(ctx); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the controller: %w", err)
	}
	return nil
}

const proxyContainer = "lbproxy"

// imageOfPod copies image and pull secrets from the controller's own pod.
func (c *Config) imageOfPod(ctx context.Context, reader client.Reader) error {
	pod := &corev1.Pod{}
	if err := reader.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: c.PodName}, pod); err != nil {
		return fmt.Errorf("read the controller's pod for the proxy image: %w: fix this or set --proxy-image", err)
	}
	for i := range pod.Spec.InitContainers {
		if container := &pod.Spec.InitContainers[i]; container.Name == proxyContainer {
			c.ProxyImage, c.ProxyPullSecrets = container.Image, pod.Spec.ImagePullSecrets
			return nil
		}
	}
	return fmt.Errorf("pod %s/%s has no init container %s with the proxy image: add it or set --proxy-image",
		c.Namespace, c.PodName, proxyContainer)
}

type controller struct {
	config Config
	mgr    ctrl.Manager
	log    logr.Logger

	loop      *loop
	writer    *write.Writer
	identity  *identity.Manager
	nacks     *nack.Reporter
	listening atomic.Bool
}

func (c Config) serverName() string { return leaseName + "." + c.Namespace + ".svc" }

func (c *controller) setup(ctx context.Context) error {
	api, err := discovery.NewDiscoveryClientForConfigAndClient(c.mgr.GetConfig(), c.mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("create the discovery client: %w", err)
	}
	c.writer = &write.Writer{
		Client: c.mgr.GetClient(), Live: c.mgr.GetAPIReader(), Settings: c.proxySettings,
		Controller: model.GatewayController, Recorder: c.mgr.GetEventRecorder(leaseName), Scheme: c.mgr.GetScheme(),
		Log: c.log.WithName("write"),
	}
	c.writer.Prepare()
	protobuf := rest.CopyConfig(c.mgr.GetConfig())
	protobuf.ContentType = runtime.ContentTypeProtobuf
	core, err := corev1client.NewForConfigAndClient(protobuf, c.mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("create the client for Secrets: %w", err)
	}
	read, err := source.New(ctx, c.mgr.GetCache(), source.Kinds{
		Served: api, API: c.mgr.GetAPIReader(), Reviews: c.mgr.GetClient(),
		Secrets: func(namespace string, kind corev1.SecretType) (toolscache.SharedIndexInformer, error) {
			return secretInformer(core.RESTClient(), namespace, kind)
		},
	}, c.writer.Touch, c.log.WithName("source"))
	if err != nil {
		return err
	}
	if err := c.watchObjects(ctx); err != nil {
		return err
	}
	authenticator := &authentication.Authenticator{
		Reviews: c.mgr.GetClient(), Cached: c.mgr.GetCache(), Live: c.mgr.GetAPIReader(),
	}
	configurations := server.NewServer(authenticator.Authenticate)
	c.loop = &loop{
		source: read, served: configurations, settings: routeSettings(&c.config), namespace: c.config.Namespace,
		compiled: c.requestPass, needsEndpoints: c.writer.Follows, log: c.log.WithName("compile"),
	}
	authenticator.Fleets = c.loop.Fleet
	c.nacks = &nack.Reporter{
		Client: c.mgr.GetClient(), Proxies: configurations.Proxies, Deployments: c.loop.Deployments,
		Log: c.log.WithName("refusals"),
	}
	c.nacks.Prepare()
	configurations.OnAcknowledge = c.nacks.Touch
	c.writer.Compiled, c.writer.HasEndpoints, c.writer.Backends = c.loop.Latest, read.HasEndpoints, read.Backends
	c.identity = c.newIdentity()
	c.identity.Changed = func() { c.writer.Touch(); read.Changes().RequestFull() }
	c.identity.OnLoss = configurations.Suspend
	c.loop.secrets = c.identity.Secrets
	for _, part := range []manager.Runnable{read, c.loop, c.identity, c.nacks, c.writer, c.server(configurations)} {
		if err := c.mgr.Add(part); err != nil {
			return fmt.Errorf("add a component to the manager: %w", err)
		}
	}
	return errors.Join(
		managed.AddProbes(c.mgr, c.config.ProbeAddress, "serving", c.ready),
		managed.AddMetrics(c.mgr, managed.Metrics{
			Address: c.config.MetricsAddress, Secure: c.config.MetricsSecure, CertDir: c.config.MetricsCertDir,
		}))
}

func (c *controller) newIdentity() *identity.Manager {
	return &identity.Manager{
		Reader: c.mgr.GetAPIReader(), Writer: c.mgr.GetClient(),
		Secret: types.NamespacedName{Namespace: c.config.Namespace, Name: leaseName},
		Client: types.NamespacedName{Namespace: c.config.Namespace, Name: infrastructure.MetricsSecret},
		Names:  []string{c.config.serverName()}, IsLeader: c.isLeader,
		LossAfter: cmp.Or(c.config.APILossAfter, 30*time.Second), Log: c.log.WithName("identity"),
	}
}

func (c *controller) requestPass() {
	c.writer.Touch()
	c.nacks.Touch()
}

func routeSettings(config *Config) model.Settings {
	settings := model.DefaultSettings()
	settings.NamespaceBytes, settings.ProxyBytes = config.NamespaceBytes.Value(), config.ProxyBytes.Value()
	settings.ReservedPorts = []int32{infrastructure.AdminPort}
	return settings
}

func (c *controller) isLeader() bool {
	select {
	case <-c.mgr.Elected():
		return true
	default:
		return false
	}
}

func (c *controller) watchObjects(ctx context.Context) error {
	for _, object := range write.Kinds() {
		informer, err := c.mgr.GetCache().GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", object, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { c.requestPass() }, UpdateFunc: func(any, any) { c.requestPass() }, DeleteFunc: func(any) { c.requestPass() },
		}); err != nil {
			return fmt.Errorf("watch %T: %w", object, err)
		}
	}
	// Pods are read for authentication only, so their changes trigger no pass.
	pods := &metav1.PartialObjectMetadata{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if _, err := c.mgr.GetCache().GetInformer(ctx, pods, cache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	return nil
}

// proxySettings returns false until a serving certificate exists.
func (c *controller) proxySettings(ctx context.Context) (infrastructure.Settings, bool, error) {
	settings := infrastructure.Settings{
		Namespace: c.config.Namespace, LoadBalancerClass: c.config.LoadBalancerClass,
		Image: c.config.ProxyImage, PullPolicy: corev1.PullPolicy(c.config.ProxyPullPolicy),
		PullSecrets: c.config.ProxyPullSecrets,
		Controller:  c.config.ControllerAddress, ServerName: c.config.serverName(), CAs: c.identity.Trusted(),
		CPU: c.config.ProxyCPU, Memory: c.config.ProxyMemory, MemoryLimit: c.config.ProxyMemoryLimit,
	}
	if settings.CAs == "" {
		return settings, false, nil
	}
	if settings.Controller != "" {
		return settings, true, nil
	}
	service := &corev1.Service{}
	at := types.NamespacedName{Namespace: c.config.Namespace, Name: leaseName}
	if err := c.mgr.GetClient().Get(ctx, at, service); err != nil {
		return settings, false, fmt.Errorf("read the controller's Service %s: %w", at, err)
	}
	if len(service.Spec.Ports) == 0 || net.ParseIP(service.Spec.ClusterIP) == nil {
		return settings, false, fmt.Errorf("the controller's Service %s has no cluster IP for proxies to connect to", at)
	}
	// The address, not the name, so that proxies do not depend on cluster DNS.
	settings.Controller = net.JoinHostPort(service.Spec.ClusterIP, fmt.Sprint(service.Spec.Ports[0].Port))
	return settings, true, nil
}

// proxyConnections exceeds any cluster's proxies. A proxy holds a second connection while it reconnects.
var proxyConnections = serving.Limits{Connections: 4096, PerSource: 8}

// listener serves configurations to proxies on every replica.
type listener func(context.Context) error

func (l listener) Start(ctx context.Context) error { return l(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (l listener) NeedLeaderElection() bool { return false }

func (c *controller) server(configurations *server.Server) listener {
	return func(ctx context.Context) error {
		at, err := serving.Listen(c.config.ServeAddress, proxyConnections)
		if err != nil {
			return fmt.Errorf("serve proxies: %w", err)
		}
		transport := credentials.NewTLS(&tls.Config{GetCertificate: c.identity.GetCertificate, MinVersion: tls.VersionTLS13})
		grpc := configurations.NewGRPC(ctx, transport)
		stop := context.AfterFunc(ctx, grpc.Stop)
		defer stop()
		c.listening.Store(true)
		if err := grpc.Serve(at); err != nil && ctx.Err() == nil {
			return fmt.Errorf("serve proxies at %s: %w", c.config.ServeAddress, err)
		}
		return nil
	}
}

// ready fails until this replica can serve configurations.
func (c *controller) ready(*http.Request) error {
	switch {
	case !c.listening.Load():
		return errors.New("the listener for proxies is not open yet")
	case c.identity.IsLost():
		return errors.New("the API server is unreachable, the configuration may be outdated")
	case c.identity.Trusted() == "":
		return errors.New("there is no serving certificate yet")
	case c.loop.Latest() == nil:
		return errors.New("nothing has been compiled yet")
	}
	return nil
}
