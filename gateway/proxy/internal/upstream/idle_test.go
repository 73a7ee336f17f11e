// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
)

// TestIdleOfAll checks MaxIdle and fewIdle; expired, reused and forgotten connections do not count.
func TestIdleOfAll(t *testing.T) {
	with := settings()
	with.MaxIdle = 10
	var all []*Backend
	var servers []*server
	hold := make(chan chan struct{}, 100)
	for range 4 {
		s := serve(t, func(_ http.ResponseWriter, _ *http.Request) {
			until := make(chan struct{})
			hold <- until
			<-until
		})
		servers, all = append(servers, s), append(all, backendAt(with, nil, s.address))
	}
	burst := func(b *Backend) {
		var group sync.WaitGroup
		var held []chan struct{}
		for range 8 {
			group.Go(func() { _, _, _, _ = send(t, b, newRequest(t, http.MethodGet, ""), &Policy{}) })
		}
		for range 8 {
			held = append(held, <-hold)
		}
		for _, until := range held {
			close(until)
		}
		group.Wait()
	}
	for _, b := range all {
		burst(b)
	}
	for i, want := range []int32{8, 2, 2, 2} {
		await(t, fmt.Sprintf("endpoint %d has %d connections", i, want), func() bool {
			return servers[i].accepted.Load()-servers[i].closed.Load() == want
		})
	}
	all[0].transport.CloseIdleConnections()
	burst(all[3])
	await(t, "there is room again", func() bool { return servers[3].accepted.Load()-servers[3].closed.Load() == 6 })
	for _, b := range all {
		b.transport.CloseIdleConnections()
	}
	if n := with.idle.Load(); n != 0 {
		t.Errorf("%d idle connections; want 0", n)
	}
}
