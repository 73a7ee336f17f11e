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
	"slices"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Between two attempts to reach the controller.
const (
	minRetry = 200 * time.Millisecond
	maxRetry = 5 * time.Second
)

// Update leads from one version of a proxy's configuration to the next.
type Update struct {
	Version string
	// Whole says that Changed is all there is. Otherwise they come to what the proxy has, or
	// take the place of those with their names, and those in Removed go.
	Whole   bool
	Changed []*resource.Resource
	Removed []string
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
	// Refused returns what the proxy does not carry out of the version that it serves, sorted: it
	// is told to the controller. nil: nothing.
	Refused func() []*resource.Refusal
	// Log is told of what the client survives.
	Log *slog.Logger

	// received is what the controller has sent, by name, and version what it is called.
	received map[string]held
	version  string
	// pending are the names of what has changed since the version that the proxy serves: what it
	// has refused is part of the next update. nil: the proxy serves none yet.
	pending map[string]bool
	// unread are resources that came and could not be read. What had their name before stays.
	unread map[string]*resource.Refusal
}

// held is a resource, and what the controller calls its version.
type held struct {
	version  string
	resource *resource.Resource
}

// Run follows the configuration until the context ends; it begins with what the store holds.
// It never gives up: without a controller the proxy serves what it has.
func (c *Client) Run(ctx context.Context) error {
	c.received, c.unread = map[string]held{}, map[string]*resource.Refusal{}
	c.restore()
	wait := minRetry
	for ctx.Err() == nil {
		answered, err := c.follow(ctx)
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

// connect prepares a connection to the controller. Each stream has its own: a controller that ends
// one, since it does not reach the API server, say, leaves the proxy to the others behind the
// Service's address.
func (c *Client) connect() (*grpc.ClientConn, error) {
	connection, err := grpc.NewClient(c.Address,
		grpc.WithTransportCredentials(c.Transport),
		grpc.WithPerRPCCredentials(tokenSource(c.Token)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxResponseBytes), grpc.MaxCallSendMsgSize(MaxRequestBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: maxRetry}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare the connection to the controller at %s: %w", c.Address, err)
	}
	return connection, nil
}

// restore applies what the store holds. Without it, or where it is unreadable, the proxy
// waits for the controller.
func (c *Client) restore() {
	if c.Store == nil {
		return
	}
	version := ""
	err := c.Store.Load(func(part *discovery.DeltaDiscoveryResponse) error {
		if part.GetSystemVersionInfo() != "" {
			version = part.GetSystemVersionInfo()
		}
		c.merge(part)
		return nil
	})
	if err == nil && version != "" {
		err = c.Apply(c.update(version))
	}
	if err != nil {
		c.Log.Warn("the configuration that was kept is not used", "error", err)
		c.received = map[string]held{}
		return
	}
	if version != "" {
		c.pending, c.version = map[string]bool{}, version
	}
}

// follow reads one stream to its end; answered reports whether the controller sent anything.
func (c *Client) follow(ctx context.Context) (answered bool, err error) {
	connection, err := c.connect()
	if err != nil {
		return false, err
	}
	defer connection.Close()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, VersionKey, c.version))
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(connection).DeltaAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	versions := make(map[string]string, len(c.received))
	for name, sent := range c.received {
		versions[name] = sent.version
	}
	first := &discovery.DeltaDiscoveryRequest{
		TypeUrl: TypeURL, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: versions,
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
		change, err := c.take(response)
		if err != nil {
			c.Log.Error("a configuration is refused, the last one is served", "version", response.GetSystemVersionInfo(), "error", err)
			acknowledgement.ErrorDetail = &rpc.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
		} else if refused := c.refused(); len(refused) > 0 {
			c.Log.Error("resources are refused, the others are served", "version", response.GetSystemVersionInfo(),
				"refused", len(refused), "first", refused[0].GetReason())
			acknowledgement.ErrorDetail = NewRefusals(refused)
		}
		if err := stream.Send(acknowledgement); err != nil && !errors.Is(err, io.EOF) {
			return answered, err
		}
		// Nobody waits for this.
		c.keep(change)
	}
}

// take makes the proxy serve what the response changes, and gives what that was. What was
// received counts also where the proxy refuses it: the next response is the difference to it.
func (c *Client) take(response *discovery.DeltaDiscoveryResponse) (*Update, error) {
	c.merge(response)
	c.version = response.GetSystemVersionInfo()
	update := c.update(response.GetSystemVersionInfo())
	if err := c.Apply(update); err != nil {
		return nil, err
	}
	c.pending = map[string]bool{}
	return &update, nil
}

// merge takes the changes of a response over. A resource that cannot be read is noted, and holds up
// no other.
func (c *Client) merge(response *discovery.DeltaDiscoveryResponse) {
	changed := func(name string) {
		delete(c.unread, name)
		if c.pending != nil {
			c.pending[name] = true
		}
	}
	for _, name := range response.GetRemovedResources() {
		delete(c.received, name)
		changed(name)
	}
	for _, sent := range response.GetResources() {
		name, r := sent.GetName(), &resource.Resource{}
		err := sent.GetResource().UnmarshalTo(r)
		if err == nil && r.GetName() != name {
			err = fmt.Errorf("it says that its name is %q", r.GetName())
		}
		if err != nil {
			_, before := c.received[name]
			c.unread[name] = &resource.Refusal{
				Resource: name, Reason: fmt.Sprintf("read the resource %q: %v", name, err), Retained: before,
			}
			continue
		}
		c.received[name] = held{sent.GetVersion(), r}
		changed(name)
	}
}

// refused is what the proxy does not carry out, sorted.
func (c *Client) refused() []*resource.Refusal {
	var all []*resource.Refusal
	if c.Refused != nil {
		all = slices.Clone(c.Refused())
	}
	for _, name := range slices.Sorted(maps.Keys(c.unread)) {
		all = append(all, c.unread[name])
	}
	return all
}

// update leads from what the proxy serves to what was received.
func (c *Client) update(version string) Update {
	if c.pending == nil {
		update := Update{Version: version, Whole: true, Changed: make([]*resource.Resource, 0, len(c.received))}
		for _, known := range c.received {
			update.Changed = append(update.Changed, known.resource)
		}
		return update
	}
	update := Update{Version: version}
	for name := range c.pending {
		if known, kept := c.received[name]; kept {
			update.Changed = append(update.Changed, known.resource)
		} else {
			update.Removed = append(update.Removed, name)
		}
	}
	return update
}

// keep keeps what the proxy serves for a restart. That costs as much as the change, but for the
// first one and once in a while.
func (c *Client) keep(change *Update) {
	if c.Store == nil || change == nil {
		return
	}
	if err := c.Store.Save(*change, c.received); err != nil {
		c.Log.Warn("the configuration is served, but not kept for a restart", "error", err)
	}
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
