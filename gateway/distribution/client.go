// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Between two attempts to reach the controller.
const (
	minRetry = 200 * time.Millisecond
	maxRetry = 5 * time.Second
)

// Update is a version of a proxy's configuration, complete.
type Update struct {
	Version string
	// Resources by name, to be read only.
	Resources map[string]*resource.Resource
}

// Client follows the configuration of one proxy.
type Client struct {
	// Address of the controller, "host:port".
	Address string
	// Transport proves the controller to the proxy.
	Transport credentials.TransportCredentials
	// Token returns what proves the proxy to the controller. It is asked at each stream, since
	// projected tokens are replaced.
	Token func() (string, error)
	// Store keeps the last version that was applied; nil keeps none.
	Store *Store
	// Apply makes the proxy serve the update. An error leaves the proxy as it was and is told
	// to the controller.
	Apply func(Update) error
	// Log is told of what the client survives.
	Log *slog.Logger

	// received is what the controller has sent, versions what it calls it.
	received map[string]*resource.Resource
	versions map[string]string
	// keeper is nil without a store.
	keeper *keeper
}

// Run follows the configuration until the context ends; it begins with what the store holds.
// It never gives up: without a controller the proxy serves what it has.
func (c *Client) Run(ctx context.Context) error {
	c.received, c.versions = map[string]*resource.Resource{}, map[string]string{}
	c.restore()
	if c.Store != nil {
		c.keeper = newKeeper(c.Store, c.Log)
		stop := make(chan struct{})
		go c.keeper.run(stop)
		defer func() {
			close(stop)
			<-c.keeper.done
		}()
	}
	connection, err := grpc.NewClient(c.Address,
		grpc.WithTransportCredentials(c.Transport),
		grpc.WithPerRPCCredentials(tokenSource(c.Token)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxResponseBytes), grpc.MaxCallSendMsgSize(MaxRequestBytes)),
		// The connection's own pauses would grow to two minutes while no controller answers.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minRetry, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxRetry},
			MinConnectTimeout: maxRetry,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
	)
	if err != nil {
		return fmt.Errorf("prepare the connection to the controller at %s: %w", c.Address, err)
	}
	defer connection.Close()

	wait := minRetry
	for ctx.Err() == nil {
		answered, err := c.follow(ctx, connection)
		if ctx.Err() != nil {
			break
		}
		if answered {
			wait = minRetry
		}
		c.Log.Warn("the stream from the controller ended, trying again", "controller", c.Address, "error", err, "in", wait)
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
		wait = min(2*wait, maxRetry)
	}
	return nil
}

// restore applies what the store holds. Without it, or where it is unreadable, the proxy
// waits for the controller.
func (c *Client) restore() {
	if c.Store == nil {
		return
	}
	kept, err := c.Store.Load()
	if err != nil {
		c.Log.Warn("the configuration that was kept is not used", "error", err)
		return
	}
	if kept == nil {
		return
	}
	received, versions := maps.Clone(c.received), maps.Clone(c.versions)
	if err := merge(received, versions, kept); err != nil {
		c.Log.Warn("the configuration that was kept is not used", "error", err)
		return
	}
	if err := c.Apply(Update{Version: kept.GetSystemVersionInfo(), Resources: maps.Clone(received)}); err != nil {
		c.Log.Warn("the configuration that was kept is not used", "error", err)
		return
	}
	c.received, c.versions = received, versions
}

// follow reads one stream to its end; answered reports whether the controller sent anything.
func (c *Client) follow(ctx context.Context, connection *grpc.ClientConn) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	first := &discovery.DeltaDiscoveryRequest{
		TypeUrl: TypeURL, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: c.versions,
	}
	// A failed Send says only that the stream is over; Recv says why.
	if err := stream.Send(first); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return answered, err
		}
		answered = true
		acknowledgement := &discovery.DeltaDiscoveryRequest{TypeUrl: TypeURL, ResponseNonce: response.GetNonce()}
		if err := c.take(response); err != nil {
			c.Log.Error("a configuration is refused, the last one is served", "version", response.GetSystemVersionInfo(), "error", err)
			acknowledgement.ErrorDetail = &rpc.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
		}
		if err := stream.Send(acknowledgement); err != nil && !errors.Is(err, io.EOF) {
			return answered, err
		}
	}
}

// take makes the proxy serve what the response changes. What was received counts also where
// the proxy refuses it: the next response is the difference to it.
func (c *Client) take(response *discovery.DeltaDiscoveryResponse) error {
	if err := merge(c.received, c.versions, response); err != nil {
		return err
	}
	update := Update{Version: response.GetSystemVersionInfo(), Resources: maps.Clone(c.received)}
	if err := c.Apply(update); err != nil {
		return err
	}
	if c.keeper != nil {
		c.keeper.keep(update, maps.Clone(c.versions))
	}
	return nil
}

// merge takes the changes of the response over into the resources and their versions.
func merge(resources map[string]*resource.Resource, versions map[string]string, response *discovery.DeltaDiscoveryResponse) error {
	for _, name := range response.GetRemovedResources() {
		delete(resources, name)
		delete(versions, name)
	}
	var problems []error
	for _, sent := range response.GetResources() {
		r := &resource.Resource{}
		if err := sent.GetResource().UnmarshalTo(r); err != nil {
			problems = append(problems, fmt.Errorf("read the resource %q: %w", sent.GetName(), err))
			continue
		}
		resources[sent.GetName()], versions[sent.GetName()] = r, sent.GetVersion()
	}
	return errors.Join(problems...)
}

// tokenSource sends the token with each stream.
type tokenSource func() (string, error)

func (t tokenSource) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := t()
	if err != nil {
		return nil, fmt.Errorf("read the token for the controller: %w", err)
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity keeps the token from connections that can be read.
func (tokenSource) RequireTransportSecurity() bool { return true }
