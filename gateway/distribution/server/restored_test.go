// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/millrace-lb/millrace/gateway/distribution"
)

// pipedStream is an in-memory stream, for use with synctest.
type pipedStream struct {
	grpc.ServerStream
	ctx       context.Context
	requests  chan *discovery.DeltaDiscoveryRequest
	responses chan *discovery.DeltaDiscoveryResponse
}

func (s *pipedStream) Context() context.Context { return s.ctx }

func (s *pipedStream) Recv() (*discovery.DeltaDiscoveryRequest, error) {
	select {
	case request := <-s.requests:
		return request, nil
	case <-s.ctx.Done():
		return nil, io.EOF
	}
}

func (s *pipedStream) Send(response *discovery.DeltaDiscoveryResponse) error {
	s.responses <- response
	return nil
}

// TestRestored checks that proxies receive updates one minute after the API server was restored from a
// backup.
func TestRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(nil)
		s.Advance(900)
		s.Set("blue", certificates(map[string]string{"a": "restored"}))
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), identityKey{}, Identity{Owner: "blue"}))
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(distribution.VersionKey, "1000-0123456789abcdef"))
		stream := &pipedStream{
			ctx: ctx, requests: make(chan *discovery.DeltaDiscoveryRequest, 1), responses: make(chan *discovery.DeltaDiscoveryResponse, 1),
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = s.DeltaAggregatedResources(stream)
		}()
		defer func() {
			cancel()
			<-ended
		}()
		stream.requests <- request(map[string]string{"a": "of before"})
		await := func(when string, wanted bool) *discovery.DeltaDiscoveryResponse {
			t.Helper()
			synctest.Wait()
			select {
			case response := <-stream.responses:
				if !wanted {
					t.Fatalf("%s: version %s was sent, want none", when, response.GetSystemVersionInfo())
				}
				return response
			default:
				if wanted {
					t.Fatalf("%s: no version was sent", when)
				}
				return nil
			}
		}

		await("at first", false)
		time.Sleep(time.Minute / 2)
		s.Advance(901)
		s.Set("blue", certificates(map[string]string{"a": "restored, changed"}))
		await("after 30 s and a change", false)
		time.Sleep(time.Minute/2 - time.Second)
		await("after 59 seconds", false)
		time.Sleep(time.Second)
		response := await("after a minute", true)
		if got := response.GetSystemVersionInfo(); distribution.Order(got) != 901 || len(response.GetResources()) != 1 {
			t.Errorf("after one minute: version %s, %d resources; want order 901", got, len(response.GetResources()))
		}
		stream.requests <- &discovery.DeltaDiscoveryRequest{TypeUrl: distribution.TypeURL, ResponseNonce: response.GetNonce()}
		synctest.Wait()
		s.Advance(902)
		s.Set("blue", certificates(map[string]string{"a": "later"}))
		await("next change", true)
	})
}
