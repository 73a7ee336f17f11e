// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"strconv"
	"strings"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
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
		grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return s.intercept(ctx, service, stream, next)
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 30 * time.Second, Timeout: 10 * time.Second,
			// A token is looked at when a stream opens: one that was revoked is refused then.
			MaxConnectionAge: 30 * time.Minute, MaxConnectionAgeGrace: time.Minute,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	discovery.RegisterAggregatedDiscoveryServiceServer(server, s)
	return server
}

type identityKey struct{}

// intercept lets only proxies in that prove whose they are.
func (s *Server) intercept(serving context.Context, service any, stream grpc.ServerStream, next grpc.StreamHandler) error {
	token, found := bearer(stream.Context())
	if !found {
		return status.Error(codes.Unauthenticated, "no token: send it as \"authorization: Bearer TOKEN\"")
	}
	identity, err := s.authenticate(stream.Context(), token)
	if err != nil {
		return status.Errorf(codes.Unauthenticated, "the token is not accepted: %v", err)
	}
	ctx, cancel := context.WithCancel(context.WithValue(stream.Context(), identityKey{}, identity))
	defer cancel()
	defer context.AfterFunc(serving, cancel)()
	return next(service, &authenticated{ServerStream: stream, ctx: ctx})
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

// authenticated is a stream of a known proxy.
type authenticated struct {
	grpc.ServerStream
	ctx context.Context
}

func (a *authenticated) Context() context.Context { return a.ctx }

// deltaStream is the server's end of a stream.
type deltaStream = discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer

// DeltaAggregatedResources serves one proxy: all that it lacks, then each change. There is one
// response at a time; the next one has all that has changed until the proxy answers.
func (s *Server) DeltaAggregatedResources(stream deltaStream) error {
	identity, _ := stream.Context().Value(identityKey{}).(Identity)
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetTypeUrl() != distribution.TypeURL {
		return status.Errorf(codes.InvalidArgument, "type %q is not served, only %q", first.GetTypeUrl(), distribution.TypeURL)
	}
	f := &follower{server: s, stream: stream, proxy: &Proxy{Identity: identity}, requests: receive(stream)}
	s.connect(f.proxy)
	defer s.disconnect(f.proxy)
	return f.serve(first.GetInitialResourceVersions())
}

// receive reads requests until the stream ends, and then closes the channel.
func receive(stream deltaStream) <-chan *discovery.DeltaDiscoveryRequest {
	requests := make(chan *discovery.DeltaDiscoveryRequest)
	go func() {
		defer close(requests)
		for {
			request, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- request:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	return requests
}

// follower serves one stream.
type follower struct {
	server   *Server
	stream   deltaStream
	proxy    *Proxy
	requests <-chan *discovery.DeltaDiscoveryRequest
	nonce    uint64
}

// serve sends what differs from the versions that the proxy has, and then what changes.
func (f *follower) serve(versions map[string]string) error {
	var sent *snapshot
	for {
		current, replaced := f.server.current(f.proxy.Owner)
		if current == nil {
			return status.Errorf(codes.Unavailable,
				"there is no configuration for %s: it does not exist or is not compiled yet", f.proxy.Owner)
		}
		var changed []*entry
		var removed []string
		var err error
		if sent == nil {
			changed, removed, err = current.differing(versions)
		} else {
			changed, removed = current.since(sent)
		}
		// The first response comes always: its answer says that the proxy serves this version.
		if err == nil && (sent == nil || len(changed) > 0 || len(removed) > 0) {
			err = f.send(current.version, changed, removed)
		}
		if err != nil {
			return err
		}
		sent = current
		if ended := f.wait(replaced); ended {
			return nil
		}
	}
}

// send sends a response, and waits until the proxy has answered.
func (f *follower) send(version string, changed []*entry, removed []string) error {
	f.nonce++
	response := &discovery.DeltaDiscoveryResponse{
		TypeUrl: distribution.TypeURL, SystemVersionInfo: version, Nonce: strconv.FormatUint(f.nonce, 10),
		Resources: make([]*discovery.Resource, 0, len(changed)), RemovedResources: removed,
	}
	for _, e := range changed {
		packed, err := e.pack()
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		response.Resources = append(response.Resources, packed)
	}
	f.server.note(func() { f.proxy.Sent = version })
	if err := f.stream.Send(response); err != nil {
		return err
	}
	for {
		select {
		case <-f.stream.Context().Done():
			return f.stream.Context().Err()
		case request, more := <-f.requests:
			if !more {
				return nil
			}
			if request.GetResponseNonce() == response.GetNonce() {
				f.acknowledge(version, request.GetErrorDetail().GetMessage())
				return nil
			}
		}
	}
}

// acknowledge notes what the proxy says of a version.
func (f *follower) acknowledge(version, refusal string) {
	f.server.note(func() {
		f.proxy.Refusal = refusal
		if refusal == "" {
			f.proxy.Acknowledged = version
		}
	})
}

// wait waits until the version is replaced. It reports whether the stream ended first.
func (f *follower) wait(replaced <-chan struct{}) (ended bool) {
	for {
		select {
		case <-f.stream.Context().Done():
			return true
		case _, more := <-f.requests:
			// Nothing is asked for that is not sent anyhow.
			if !more {
				return true
			}
		case <-replaced:
			return false
		}
	}
}

func (s *Server) connect(proxy *Proxy) { s.note(func() { s.proxies[proxy] = true }) }

func (s *Server) disconnect(proxy *Proxy) { s.note(func() { delete(s.proxies, proxy) }) }

func (s *Server) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}
