// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/api/live"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

const (
	// uiRest is how far readings of the watched objects are apart at least.
	uiRest = time.Second
	// attention is how long the aggregated API is asked after a page has last asked for the state.
	attention = 10 * time.Second
	// openAgain is how long the aggregated API is left alone where it is not there.
	openAgain = 30 * time.Second
	// ratesNodes is how many agents are asked for the rates of a Service. Beyond that the aggregated API
	// is needed.
	ratesNodes = 60
)

// uiSource knows a cluster by watches, by the aggregated API while somebody looks, and by agents when
// they are asked.
type uiSource struct {
	env    environment
	config cluster.Config
	// ready is closed once there is a state.
	ready chan struct{}
	wake  chan struct{}
	// announcementsOld is true where announcements have changed since they were read.
	announcementsOld atomic.Bool

	mu     sync.Mutex
	looked time.Time
	// state is given out, and never written again; next takes what is new.
	state *view.State
	next  view.State
	fresh bool
}

func newUISource(env environment, config cluster.Config) *uiSource {
	s := &uiSource{env: env, config: config, ready: make(chan struct{}), wake: make(chan struct{}, 1)}
	s.announcementsOld.Store(true)
	s.next.Cluster = cluster.Name(config)
	return s
}

// run follows the cluster until ctx is done.
func (s *uiSource) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		first := sync.OnceFunc(func() { close(s.ready) })
		return cluster.WatchAllowed(ctx, s.config, uiRest, func(in *report.Input, refused []cluster.Refused) error {
			s.put(func(next *view.State) {
				next.Input, next.Refused = in, nil
				for _, kind := range refused {
					next.Refused = append(next.Refused, view.Refusal{Kind: kind.Kind, Message: kind.Err.Error()})
				}
			})
			first()
			return nil
		})
	})
	group.Go(func() error {
		cluster.FollowAnnouncements(ctx, s.config, func() { s.announcementsOld.Store(true) })
		return nil
	})
	group.Go(func() error {
		s.followLive(ctx)
		return nil
	})
	return group.Wait()
}

func (s *uiSource) put(change func(*view.State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.next)
	s.fresh = true
}

// State implements ui.Source.
func (s *uiSource) State() *view.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.looked) > attention {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	s.looked = time.Now()
	if s.fresh && s.next.Input != nil {
		state := s.next
		s.state, s.fresh = &state, false
	}
	return s.state
}

// attended reports whether a page has asked for the state lately.
func (s *uiSource) attended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.looked) <= attention
}

// followLive asks the aggregated API while somebody looks.
func (s *uiSource) followLive(ctx context.Context) {
	ticker := time.NewTicker(live.SampleInterval)
	defer ticker.Stop()
	var api *cluster.Live
	var failed time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-ticker.C:
		}
		if !s.attended() || api == nil && time.Since(failed) < openAgain {
			continue
		}
		if api == nil {
			var err error
			if api, err = cluster.OpenLive(ctx, s.config, io.Discard); err != nil {
				failed = time.Now()
				s.noLive(err)
				continue
			}
		}
		if err := s.readLive(ctx, api); err != nil {
			// It may be gone, or have come back with other resources.
			api, failed = nil, time.Now()
			s.noLive(err)
		}
	}
}

// noLive drops what the aggregated API said: it may be true no more.
func (s *uiSource) noLive(err error) {
	s.announcementsOld.Store(true)
	s.put(func(next *view.State) { next.Live, next.Traffic, next.Announcements = err.Error(), nil, nil })
}

// readLive reads the aggregated API. One of its two lists may be forbidden.
func (s *uiSource) readLive(ctx context.Context, api *cluster.Live) error {
	traffic, err := api.Traffic(ctx, "")
	if err != nil && !errors.Is(err, cluster.ErrForbidden) {
		return err
	}
	notes := []string{}
	if err != nil {
		traffic, notes = nil, append(notes, err.Error())
	}
	var announcements *livev1alpha1.VIPAnnouncementList
	old := s.announcementsOld.Swap(false)
	if old {
		announcements, err = api.Announcements(ctx, "")
		switch {
		case errors.Is(err, cluster.ErrForbidden):
			// It is tried again with the next sample.
			s.announcementsOld.Store(true)
			announcements, notes = nil, append(notes, err.Error())
		case err != nil:
			return err
		}
	}
	s.put(func(next *view.State) {
		next.Traffic, next.Live = traffic, strings.Join(notes, "; ")
		if old {
			next.Announcements = announcements
		}
	})
	return nil
}

// quiet is an environment that keeps what is told, and the lines that it has told.
func (s *uiSource) quiet() (env environment, stdout *bytes.Buffer, warnings func() []string) {
	env = s.env
	var said bytes.Buffer
	stdout = &bytes.Buffer{}
	env.stdout, env.stderr = stdout, &said
	return env, stdout, func() []string {
		var lines []string
		for line := range strings.Lines(said.String()) {
			lines = append(lines, strings.TrimPrefix(strings.TrimSpace(line), "millrace: "))
		}
		return lines
	}
}

// Ask implements ui.Source.
func (s *uiSource) Ask(ctx context.Context, id string) (*ui.Answer, error) {
	state := s.State()
	kind, name, _ := strings.Cut(id, "/")
	switch {
	case state == nil:
		return nil, errors.New("the cluster has not been read yet")
	case kind == "node":
		return s.askNode(ctx, name)
	case kind == "service":
		return s.askService(ctx, state, name)
	}
	return &ui.Answer{}, nil
}

// askNode asks for the sessions of a node, and for its rates. One may be refused.
func (s *uiSource) askNode(ctx context.Context, node string) (*ui.Answer, error) {
	answer := &ui.Answer{}
	var sessionsErr, ratesErr error
	env, _, warnings := s.quiet()
	var group errgroup.Group
	group.Go(func() error {
		told, err := askBGP(ctx, env, s.config, []string{node}, "peers")
		sessionsErr = err
		for _, bgp := range told {
			answer.Sessions = append(answer.Sessions, bgp.Peers...)
		}
		return nil
	})
	group.Go(func() error {
		answer.Rates, ratesErr = s.rates(ctx, "", []string{node})
		return nil
	})
	_ = group.Wait()
	if sessionsErr != nil && ratesErr != nil {
		return nil, sessionsErr
	}
	answer.Warnings = warnings()
	for _, err := range []error{sessionsErr, ratesErr} {
		if err != nil {
			answer.Warnings = append(answer.Warnings, err.Error())
		}
	}
	return answer, nil
}

// askService asks who announces the VIPs of a Service, and for its rates where the aggregated API does
// not have them.
func (s *uiSource) askService(ctx context.Context, state *view.State, service string) (*ui.Answer, error) {
	in := *state.Input
	in.VIPs = slices.DeleteFunc(slices.Clone(in.VIPs), func(vip millracev1alpha1.VIP) bool {
		return !slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1alpha1.VIPClaim) bool {
			return claim.Namespace+"/"+claim.Name == service
		})
	})
	answer := &ui.Answer{}
	if len(in.VIPs) == 0 {
		return answer, nil
	}
	env, _, warnings := s.quiet()
	asking := &list{env: env, config: &s.config, addresses: namedAddresses}
	if err := asking.ask(ctx, &in); err != nil {
		return nil, err
	}
	told := report.Build(&in)
	answer.VIPs = told.VIPs
	for _, problem := range told.Problems {
		if problem.Kind == "VIP" || problem.Reason == report.ReasonNoAnswer {
			answer.Problems = append(answer.Problems, problem)
		}
	}
	answer.Warnings = append(warnings(), told.Remarks...)
	if state.Traffic == nil {
		rates, err := s.serviceRates(ctx, state, service)
		if err != nil {
			answer.Warnings = append(answer.Warnings, "no rates: "+err.Error())
		}
		answer.Rates = rates
	}
	return answer, nil
}

func (s *uiSource) serviceRates(ctx context.Context, state *view.State, service string) (*report.Rates, error) {
	agents := report.AgentPods(state.Input.Pods)
	if len(agents) > ratesNodes {
		return nil, fmt.Errorf("with more than %d nodes they need the aggregated API live.millrace.io", ratesNodes)
	}
	namespace, _, _ := strings.Cut(service, "/")
	rates, err := s.rates(ctx, namespace, nil)
	if err != nil {
		return nil, err
	}
	rates.Frontends = slices.DeleteFunc(rates.Frontends, func(f report.FrontendRate) bool { return f.Service != service })
	// Those of the nodes are of all Services.
	rates.Drops = map[string]float64{}
	return rates, nil
}

// rates are those that agents count in two seconds: of nodes, or of all where none is named.
func (s *uiSource) rates(ctx context.Context, namespace string, nodes []string) (*report.Rates, error) {
	found, err := cluster.FindAgents(ctx, s.config)
	if err != nil {
		return nil, err
	}
	env, stdout, warnings := s.quiet()
	watch := topWatch{env: env, interval: 2 * time.Second, once: true, json: true, namespace: namespace}
	if err := watch.run(ctx, found, orAll(nodes, found)); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.Join(warnings(), "; "))
	}
	var rates report.Rates
	if err := json.Unmarshal(stdout.Bytes(), &rates); err != nil {
		return nil, fmt.Errorf("read the rates: %w", err)
	}
	return &rates, nil
}

// Why implements ui.Source.
func (s *uiSource) Why(ctx context.Context, query ui.WhyQuery) (*ui.Timeline, error) {
	env, _, warnings := s.quiet()
	asked := &why{env: env, config: &s.config, at: query.At, around: query.Around}
	told, err := asked.tell(ctx, query.Service, time.Now())
	if err != nil {
		return nil, err
	}
	return &ui.Timeline{Why: told, Warnings: warnings()}, nil
}

// Trace implements ui.Source.
func (s *uiSource) Trace(ctx context.Context, packet ui.Packet) (any, error) {
	first, err := traceArguments([]string{packet.Source.String(), packet.Destination.String()}, packet.Protocol, packet.Midstream)
	if err != nil {
		return nil, err
	}
	traced, err := packetWay(ctx, s.config, packet.Node, first)
	if err != nil && len(traced.Hops) == 0 {
		return nil, err
	}
	answer := struct {
		way
		Error string `json:"error,omitempty"`
	}{way: traced}
	if err != nil {
		answer.Error = err.Error()
	}
	return answer, nil
}
