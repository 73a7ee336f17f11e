// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace-lb/millrace/gateway/distribution"
)

// NewGRPC returns the gRPC server that serves to proxies. Streams end with the context.
func (s *Server) NewGRPC(ctx context.Context, transport credentials.TransportCredentials) *grpc.Server {
	server := grpc.NewServer(
		grpc.Creds(transport),
		grpc.MaxRecvMsgSize(distribution.MaxRequestBytes),
		grpc.StreamInterceptor(s.intercept),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 30 * time.Second, Timeout: 10 * time.Second,
			// A token is looked at when a stream opens: one that was revoked is refused then.
			MaxConnectionAge: 30 * time.Minute, MaxConnectionAgeGrace: time.Minute,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	discovery.RegisterAggregatedDiscoveryServiceServer(server, s.handler(ctx))
	return server
}

type identityKey struct{}

// intercept lets only proxies in that prove whose they are.
func (s *Server) intercept(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	token, found := bearer(stream.Context())
	if !found {
		return status.Error(codes.Unauthenticated, "no token: send it as \"authorization: Bearer TOKEN\"")
	}
	identity, err := s.authenticate(stream.Context(), token)
	if err != nil {
		return status.Errorf(codes.Unauthenticated, "the token is not accepted: %v", err)
	}
	ctx := context.WithValue(stream.Context(), identityKey{}, identity)
	return next(service, &authenticated{ServerStream: stream, ctx: ctx, owner: identity.Owner})
}

// bearer returns the token that came with the stream.
func bearer(ctx context.Context) (string, bool) {
	incoming, _ := metadata.FromIncomingContext(ctx)
	for _, value := range incoming.Get("authorization") {
		if token, found := strings.CutPrefix(value, "Bearer "); found && token != "" {
			return token, true
		}
	}
	return "", false
}

// authenticated is a stream whose requests carry the owner, whatever the proxy wrote there.
type authenticated struct {
	grpc.ServerStream
	ctx   context.Context
	owner string
}

func (a *authenticated) Context() context.Context { return a.ctx }

func (a *authenticated) RecvMsg(message any) error {
	if err := a.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	if request, is := message.(*discovery.DeltaDiscoveryRequest); is {
		request.Node = &core.Node{Id: a.owner}
	}
	return nil
}

// callbacks keep the list of connected proxies.
func callbacks(s *Server) xds.Callbacks {
	return xds.CallbackFuncs{
		DeltaStreamOpenFunc: func(ctx context.Context, stream int64, _ string) error {
			identity, _ := ctx.Value(identityKey{}).(Identity)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.proxies[stream] = &Proxy{Identity: identity}
			return nil
		},
		DeltaStreamClosedFunc: func(stream int64, _ *core.Node) {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.proxies, stream)
		},
		StreamDeltaResponseFunc: func(stream int64, _ *discovery.DeltaDiscoveryRequest, response *discovery.DeltaDiscoveryResponse) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if proxy := s.proxies[stream]; proxy != nil {
				proxy.Sent, proxy.nonce = response.GetSystemVersionInfo(), response.GetNonce()
			}
		},
		StreamDeltaRequestFunc: func(stream int64, request *discovery.DeltaDiscoveryRequest) error {
			s.acknowledge(stream, request)
			return nil
		},
	}
}

// acknowledge notes what the proxy says of the last response.
func (s *Server) acknowledge(stream int64, request *discovery.DeltaDiscoveryRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	proxy := s.proxies[stream]
	if proxy == nil || request.GetResponseNonce() == "" || request.GetResponseNonce() != proxy.nonce {
		return
	}
	proxy.Refusal = request.GetErrorDetail().GetMessage()
	if proxy.Refusal == "" {
		proxy.Acknowledged = proxy.Sent
	}
}
