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
	"strings"
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

const (
	minRetry = 200 * time.Millisecond
	maxRetry = 5 * time.Second
)

// Update is the difference between two versions of a proxy's configuration.
type Update struct {
	Version string
	// Whole is true if Changed is the complete configuration. Otherwise Removed lists the names of removed
	// resources.
	Whole   bool
	Changed []*resource.Resource
	Removed []string
}

// Client receives the configuration of one proxy and applies it.
type Client struct {
	Address   string
	Transport credentials.TransportCredentials
	// Token returns the token for a stream. It is called for each stream, because projected tokens are
	// rotated.
	Token func() (string, error)
	// Store persists the last applied version; nil disables persistence.
	Store *Store
	Apply func(Update)
	// Refused returns the errors of the resources that the proxy rejected in the applied version, sorted. It
	// may be nil.
	Refused func() []string
	Log     *slog.Logger

	received map[string]received
	version  string
	// pending contains the names of resources that changed since the last applied version; nil before the
	// first version.
	pending map[string]bool
	// unread contains the errors of resources that cannot be parsed. Their previous versions are retained.
	unread map[string]error
}

type received struct {
	version  string
	resource *resource.Resource
}

// Run applies the stored configuration and follows the controller until the context ends. It retries all
// errors.
func (c *Client) Run(ctx context.Context) error {
	c.received, c.unread = map[string]received{}, map[string]error{}
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
		c.Log.Warn("the stream from the controller ended, retrying", "controller", c.Address, "error", err, "in", wait)
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

// connect opens a new connection for each stream, so that the proxy can reach another replica after a replica
// ended the stream.
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

// restore applies the stored configuration. If it does not exist or cannot be read, the proxy waits for the
// controller.
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
	if err != nil {
		c.Log.Warn("the stored configuration is not used", "error", err)
		c.received = map[string]received{}
		return
	}
	if version != "" {
		c.Apply(c.update(version))
		c.pending, c.version = map[string]bool{}, version
	}
}

// follow receives updates from one stream until it ends. answered is true if the controller sent a response.
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
	// After io.EOF from Send, Recv returns the error of the stream.
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
		change := c.take(response)
		if refused := c.refused(); len(refused) > 0 {
			c.Log.Error("resources are rejected, the others are served", "version", response.GetSystemVersionInfo(),
				"refused", len(refused), "first", refused[0])
			acknowledgement.ErrorDetail = &rpc.Status{Code: int32(codes.InvalidArgument), Message: JoinReasons(refused)}
		}
		if err := stream.Send(acknowledgement); err != nil && !errors.Is(err, io.EOF) {
			return answered, err
		}
		// Save after the acknowledgement, which persistence must not delay.
		c.save(change)
	}
}

// maxRejection is the maximum length of a rejection message in bytes.
const maxRejection = 1024

// JoinReasons joins the reasons of a rejection into one message of limited length.
func JoinReasons(reasons []string) string {
	text := strings.Join(reasons, "; ")
	if len(text) <= maxRejection {
		return text
	}
	return strings.ToValidUTF8(text[:maxRejection-4], "") + " ..."
}

// take merges a response into the configuration and applies it.
func (c *Client) take(response *discovery.DeltaDiscoveryResponse) Update {
	c.merge(response)
	c.version = response.GetSystemVersionInfo()
	update := c.update(c.version)
	c.Apply(update)
	c.pending = map[string]bool{}
	return update
}

// merge adds a response to the configuration. A resource that cannot be read is recorded in unread and does
// not affect other resources.
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
			err = fmt.Errorf("its name is %q", r.GetName())
		}
		if err != nil {
			c.unread[name] = fmt.Errorf("read resource %q: %w", name, err)
			continue
		}
		c.received[name] = received{sent.GetVersion(), r}
		changed(name)
	}
}

func (c *Client) refused() []string {
	var all []string
	if c.Refused != nil {
		all = slices.Clone(c.Refused())
	}
	for _, name := range slices.Sorted(maps.Keys(c.unread)) {
		all = append(all, c.unread[name].Error())
	}
	return all
}

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

func (c *Client) save(change Update) {
	if c.Store == nil {
		return
	}
	if err := c.Store.Save(change, c.received); err != nil {
		c.Log.Warn("the configuration is served, but could not be stored for a restart", "error", err)
	}
}

type tokenSource func() (string, error)

func (t tokenSource) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := t()
	if err != nil {
		return nil, fmt.Errorf("read the token for the controller: %w", err)
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity returns true, so that the token is never sent over a plaintext connection.
func (tokenSource) RequireTransportSecurity() bool { return true }
