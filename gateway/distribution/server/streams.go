// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"strconv"
	"strings"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace-lb/millrace/api/serving"
	"github.com/millrace-lb/millrace/gateway/distribution"
)

// NewGRPC returns the gRPC server for proxies. All streams end when the context ends.
func (s *Server) NewGRPC(ctx context.Context, transport credentials.TransportCredentials) *grpc.Server {
	server := grpc.NewServer(
		grpc.Creds(transport),
		grpc.MaxRecvMsgSize(distribution.MaxRequestBytes),
		// A proxy opens one stream. Headers are limited because they are read before the token is checked.
		grpc.MaxConcurrentStreams(2), grpc.MaxHeaderListSize(serving.MaxHeaderBytes),
		grpc.ConnectionTimeout(5*time.Second), grpc.ReadBufferSize(8<<10),
		grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return s.intercept(ctx, service, stream, next)
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 30 * time.Second, Timeout: 10 * time.Second, MaxConnectionIdle: 30 * time.Second,
			// Tokens are checked when a stream starts, so limiting the age of connections revalidates them.
			MaxConnectionAge: 30 * time.Minute, MaxConnectionAgeGrace: time.Minute,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	discovery.RegisterAggregatedDiscoveryServiceServer(server, s)
	return server
}

type identityKey struct{}

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

func bearer(ctx context.Context) (string, bool) {
	incoming, _ := metadata.FromIncomingContext(ctx)
	for _, value := range incoming.Get("authorization") {
		if token, found := strings.CutPrefix(value, "Bearer "); found && token != "" {
			return token, true
		}
	}
	return "", false
}

type authenticated struct {
	grpc.ServerStream
	ctx context.Context
}

func (a *authenticated) Context() context.Context { return a.ctx }

type deltaStream = discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer

// DeltaAggregatedResources sends the resources that the proxy lacks, and then each change. Changes are
// combined until the proxy acknowledges the previous response.
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
	incoming, _ := metadata.FromIncomingContext(stream.Context())
	for _, version := range incoming.Get(distribution.VersionKey) {
		f.initialVersion, f.catchUpTimer = version, time.After(catchUp)
	}
	f.serving = s.connect(f.proxy)
	defer s.disconnect(f.proxy)
	return f.serve(first.GetInitialResourceVersions())
}

// receive returns a channel of the stream's requests, which is closed when the stream ends.
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

type follower struct {
	server   *Server
	stream   deltaStream
	proxy    *Proxy
	requests <-chan *discovery.DeltaDiscoveryRequest
	nonce    uint64
	serving  context.Context
	// initialVersion is the version that the proxy had when the stream started. No older version is sent
	// until catchUpTimer fires.
	initialVersion string
	catchUpTimer   <-chan time.Time
}

// catchUp is the time that a proxy with a newer version waits for this replica to observe the resourceVersion
// of that version. A replica that cannot reach the API server is suspended, so after this time the API server
// must have been restored from a backup, and its older state is valid.
const catchUp = time.Minute

// errSuspended makes a proxy connect to another replica.
var errSuspended = status.Error(codes.Unavailable,
	"this replica cannot reach the API server, and its configuration may be outdated: connect to another replica")

func (f *follower) serve(versions map[string]string) error {
	var sent *snapshot
	for {
		if f.serving.Err() != nil {
			return errSuspended
		}
		current, replaced := f.server.current(f.proxy.Owner)
		if current == nil {
			return status.Errorf(codes.Unavailable,
				"there is no configuration for %s: it does not exist or is not compiled yet", f.proxy.Owner)
		}
		var changed []*entry
		var removed []string
		if sent == nil {
			changed, removed = current.differing(versions)
			if f.mustWait(current, len(changed)+len(removed) > 0) {
				if ended, err := f.wait(replaced); ended {
					return err
				}
				continue
			}
		} else {
			changed, removed = current.since(sent)
		}
		// The first response is always sent, because its acknowledgement confirms the proxy's version.
		if sent == nil || len(changed) > 0 || len(removed) > 0 {
			if err := f.send(current, changed, removed); err != nil {
				return err
			}
		}
		sent = current
		if ended, err := f.wait(replaced); ended {
			return err
		}
	}
}

// mustWait reports whether the proxy started with a newer version of different content.
func (f *follower) mustWait(current *snapshot, differs bool) bool {
	return differs && current.order < distribution.Order(f.initialVersion)
}

// name returns the version name to send. A proxy with equal content keeps its version name if it is newer.
func (f *follower) name(current *snapshot, differs bool) string {
	if !differs && current.order < distribution.Order(f.initialVersion) {
		return f.initialVersion
	}
	return current.version()
}

func (f *follower) send(current *snapshot, changed []*entry, removed []string) error {
	version := f.name(current, len(changed)+len(removed) > 0)
	f.nonce++
	response := &discovery.DeltaDiscoveryResponse{
		TypeUrl: distribution.TypeURL, SystemVersionInfo: version, Nonce: strconv.FormatUint(f.nonce, 10),
		Resources: make([]*discovery.Resource, 0, len(changed)), RemovedResources: removed,
	}
	for _, e := range changed {
		if packed, err := e.pack(); err == nil {
			response.Resources = append(response.Resources, packed)
		}
	}
	f.server.update(func() { f.proxy.Sent = version })
	if err := f.stream.Send(response); err != nil {
		return err
	}
	for {
		select {
		case <-f.stream.Context().Done():
			return f.stream.Context().Err()
		case <-f.serving.Done():
			return errSuspended
		case request, more := <-f.requests:
			if !more {
				return nil
			}
			if request.GetResponseNonce() == response.GetNonce() {
				f.acknowledge(version, request.GetErrorDetail(), current.unsent)
				return nil
			}
		}
	}
}

// acknowledge records the acknowledgement of a version. detail contains the proxy's rejections, unsent the
// errors of resources that were not sent.
func (f *follower) acknowledge(version string, detail *rpc.Status, unsent []string) {
	reasons := unsent[:len(unsent):len(unsent)]
	if detail.GetMessage() != "" {
		reasons = append(reasons, detail.GetMessage())
	}
	refusal, isNews := distribution.JoinReasons(reasons), false
	f.server.update(func() {
		// The first acknowledgement counts as a change, because the proxy may have rejected the version at
		// another replica.
		isNews = f.proxy.Refusal != refusal || f.proxy.Acknowledged == ""
		f.proxy.Refusal, f.proxy.Acknowledged = refusal, version
	})
	if isNews && f.server.OnAcknowledge != nil {
		f.server.OnAcknowledge()
	}
}

// wait waits for a new snapshot or the end of the stream. ended is true if the stream ended.
func (f *follower) wait(replaced <-chan struct{}) (ended bool, err error) {
	for {
		select {
		case <-f.stream.Context().Done():
			return true, nil
		case <-f.serving.Done():
			return true, errSuspended
		case <-f.catchUpTimer:
			f.initialVersion, f.catchUpTimer = "", nil
			return false, nil
		case _, more := <-f.requests:
			// Subscriptions are ignored, because all resources are always sent.
			if !more {
				return true, nil
			}
		case <-replaced:
			return false, nil
		}
	}
}

// connect registers a proxy and returns a context that is canceled when the server is suspended.
func (s *Server) connect(proxy *Proxy) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxies[proxy] = true
	return s.serving
}

func (s *Server) disconnect(proxy *Proxy) { s.update(func() { delete(s.proxies, proxy) }) }

func (s *Server) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}
