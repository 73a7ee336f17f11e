// SPDX-License-Identifier: Apache-2.0

package lbproxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

type fleet struct {
	mutex   sync.Mutex
	serving []*replica
	turn    int
}

type replica struct {
	*running
	address string
}

func (f *fleet) next() *replica {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.turn++
	return f.serving[f.turn%len(f.serving)]
}

func (f *fleet) add(r *replica) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.serving = append(f.serving, r)
}

func (f *fleet) remove(r *replica) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for i, each := range f.serving {
		if each == r {
			f.serving = append(f.serving[:i:i], f.serving[i+1:]...)
			return
		}
	}
}

type session struct{ backend, cookie string }

func (f *fleet) request(s *session) (backend string, err error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+f.next().address+"/", nil)
	if err != nil {
		return "", err
	}
	if s.cookie != "" {
		request.AddCookie(&http.Cookie{Name: "s", Value: s.cookie})
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	for _, cookie := range response.Cookies() {
		s.cookie = cookie.Value
	}
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", response.StatusCode)
	}
	return string(body), err
}

// TestSessionsThroughRollout replaces three proxies one by one during a change of secrets. Each session must
// keep its endpoint, and no request may fail.
func TestSessionsThroughRollout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configurations.Set(owner, w.withSessions(t, 1, 2))
	w.control(t)
	proxies := &fleet{}
	start := func(number int) *replica {
		address := fmt.Sprintf("127.0.0.%d", 10+number)
		r := &replica{w.runAt(t, address, fmt.Sprintf("configuration-%d", number)), net.JoinHostPort(address, strconv.Itoa(w.port))}
		r.ready(t, http.StatusOK)
		proxies.add(r)
		return r
	}
	old := []*replica{start(0), start(1), start(2)}
	sessions := make([]session, 100)
	for i := range sessions {
		var err error
		sessions[i].backend, err = proxies.request(&sessions[i])
		must(t, err)
	}
	over, ended := make(chan struct{}), make(chan struct{})
	var rounds, moved, failed atomic.Int64
	go func() {
		defer close(ended)
		for {
			for i := range sessions {
				switch backend, err := proxies.request(&sessions[i]); {
				case err != nil:
					failed.Add(1)
					t.Logf("session %d: %v", i, err)
				case backend != sessions[i].backend:
					moved.Add(1)
				}
			}
			rounds.Add(1)
			select {
			case <-over:
				return
			default:
			}
		}
	}()
	another := func() {
		t.Helper()
		before := rounds.Load()
		eventually(t, func() error {
			if now := rounds.Load(); now < before+2 {
				return fmt.Errorf("%d rounds", now-before)
			}
			return nil
		})
	}
	for i, leaving := range old {
		start(3 + i)
		leaving.stop()
		leaving.ready(t, http.StatusServiceUnavailable)
		proxies.remove(leaving)
		must(t, <-leaving.ended)
		leaving.ended <- nil
		another()
		if i == 1 {
			w.configurations.Set(owner, w.withSessions(t, 2, 1))
			another()
		}
	}
	close(over)
	<-ended
	if moved.Load() > 0 || failed.Load() > 0 {
		t.Errorf("in %d rounds of %d sessions, %d requests changed their backend and %d failed; want none",
			rounds.Load(), len(sessions), moved.Load(), failed.Load())
	}
	t.Logf("%d rounds of %d sessions", rounds.Load(), len(sessions))
}

func (w *world) withSessions(t *testing.T, secrets ...byte) []*resource.Resource {
	t.Helper()
	all := w.resources(t, "sessions")
	for _, r := range all {
		if group := r.GetRouteGroup(); group != nil {
			group.Rules[0].SessionPersistence = &resource.SessionPersistence{SessionName: "s"}
		}
		if r.GetEndpoints() != nil {
			r.GetEndpoints().Endpoints = w.endpoints(t)
		}
	}
	shared := &resource.SharedSecret{}
	for _, value := range secrets {
		shared.Values = append(shared.Values, bytes.Repeat([]byte{value}, 32))
	}
	return append(all, &resource.Resource{Name: "secret", Kind: &resource.Resource_SharedSecret{SharedSecret: shared}})
}

func (w *world) endpoints(t *testing.T) []*resource.Endpoint {
	t.Helper()
	for len(w.many) < 8 {
		name := strconv.Itoa(len(w.many))
		backend := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) { fmt.Fprint(answer, name) }))
		t.Cleanup(backend.Close)
		at := backend.Listener.Addr().(*net.TCPAddr)
		w.many = append(w.many, &resource.Endpoint{Address: at.IP.String(), Port: uint32(at.Port)})
	}
	return w.many
}
