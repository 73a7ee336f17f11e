// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
	"k8s.io/client-go/util/cert"

	"github.com/millrace-lb/millrace/gateway/distribution/server"
	"github.com/millrace-lb/millrace/gateway/resource"
)

const controllerName = "controller.example.com"

func startOurs(w *world, s *subject) (*process, error) {
	resources, err := w.resources(s)
	if err != nil {
		return nil, err
	}
	address, err := w.serve(resources)
	if err != nil {
		return nil, err
	}
	token, err := w.write("token", "bench")
	if err != nil {
		return nil, err
	}
	return w.start("lbproxy", proxySpace, w.processor, filepath.Join(w.programs, "lbproxy"),
		"--controller", address, "--controller-name", controllerName, "--controller-ca", w.file("ca.crt"),
		"--token", token, "--admin-bind-address", "127.0.0.1:15090")
}

// serve serves the configuration inside the proxies' namespace.
func (w *world) serve(resources []*resource.Resource) (address string, err error) {
	chain, key, err := cert.GenerateSelfSignedCertKey(controllerName, nil, nil)
	if err != nil {
		return "", err
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return "", err
	}
	if _, err := w.write("ca.crt", string(chain)); err != nil {
		return "", err
	}
	const owner = "IngressClass//millrace"
	configurations := server.NewServer(func(context.Context, string) (server.Identity, error) {
		return server.Identity{Owner: owner, Pod: "default/proxy"}, nil
	})
	configurations.Set(owner, resources)
	var listener net.Listener
	if err := within(proxySpace, func() error {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(context.Background())
	serving := configurations.NewGRPC(ctx, credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	go func() { _ = serving.Serve(listener) }()
	w.control = func() {
		cancel()
		serving.Stop()
	}
	return listener.Addr().String(), nil
}

func (w *world) resources(s *subject) ([]*resource.Resource, error) {
	chain, err := os.ReadFile(w.chain)
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(w.key)
	if err != nil {
		return nil, err
	}
	found := []*resource.Resource{
		{Name: "http", Kind: &resource.Resource_Listener{Listener: &resource.Listener{
			Port: 80, TargetPort: uint32(s.http), Protocol: resource.Listener_HTTP,
		}}},
		{Name: "https", Kind: &resource.Resource_Listener{Listener: &resource.Listener{
			Port: 443, TargetPort: uint32(s.https), Protocol: resource.Listener_HTTPS, Certificates: []string{"certificate"},
		}}},
		{Name: "certificate", Kind: &resource.Resource_Certificate{Certificate: &resource.Certificate{Chain: chain, Key: key}}},
		{Name: "group", Kind: &resource.Resource_RouteGroup{RouteGroup: &resource.RouteGroup{
			Listeners: []string{"http", "https"}, Hostname: &resource.Hostname{Name: hostname},
			Rules: []*resource.Rule{{
				Route: "ingress/default/shop/0", Match: &resource.Match{Path: &resource.PathMatch{Value: "/"}},
				Backends: []*resource.WeightedBackend{{Backend: "backend", Weight: 1}},
			}},
		}}},
		{Name: "backend", Kind: &resource.Resource_Backend{Backend: &resource.Backend{Endpoints: "endpoints"}}},
		{Name: "endpoints", Kind: &resource.Resource_Endpoints{Endpoints: &resource.Endpoints{
			Endpoints: []*resource.Endpoint{{Address: backendAddress, Port: backendPort}},
		}}},
	}
	slices.SortFunc(found, func(a, b *resource.Resource) int { return strings.Compare(a.GetName(), b.GetName()) })
	return found, nil
}
