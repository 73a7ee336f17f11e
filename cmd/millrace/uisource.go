// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

const (
	// uiPause is the minimum interval between readings of the watched objects.
	uiPause = time.Second
	// activeTime is how long the aggregated API is read after a page last requested the state.
	activeTime = 10 * time.Second
	// openRetry is the retry interval if the aggregated API is not installed, or forbidden.
	openRetry = 30 * time.Second
	// probeInterval is the interval and limit of health checks while pages request the state, and the retry
	// interval of a failed watch.
	probeInterval = 5 * time.Second
	// ratesNodes limits the agents queried for rates; larger clusters need the aggregated API.
	ratesNodes = 60
)

// uiSource observes a cluster by watches, the aggregated API while pages request it, and agents on demand.
type uiSource struct {
	env    environment
	config cluster.Config
	ready  chan struct{}
	// wakeLive and wakeProbe are signalled when a page requests the state after a pause.
	wakeLive, wakeProbe chan struct{}
	// announcementsStale is true if announcements have changed since they were read.
	announcementsStale atomic.Bool

	mu          sync.Mutex
	requestedAt time.Time
	// state is shared with readers and immutable; next collects changes.
	state                      *view.State
	next                       view.State
	changed                    bool
	observedAt, liveObservedAt time.Time
	restart                    context.CancelFunc
}

func newUISource(env environment, config cluster.Config) *uiSource {
	s := &uiSource{env: env, config: config, ready: make(chan struct{})}
	s.wakeLive, s.wakeProbe = make(chan struct{}, 1), make(chan struct{}, 1)
	s.announcementsStale.Store(true)
	s.next.Cluster = cluster.Name(config)
	return s
}

// run returns an error only before the first state; later errors are part of the state.
func (s *uiSource) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.followObjects(ctx) })
	group.Go(func() error {
		s.probe(ctx)
		return nil
	})
	group.Go(func() error {
		cluster.FollowAnnouncements(ctx, s.config, func() { s.announcementsStale.Store(true) })
		return nil
	})
	group.Go(func() error {
		s.followLive(ctx)
		return nil
	})
	return group.Wait()
}

func (s *uiSource) followObjects(ctx context.Context) error {
	first := sync.OnceFunc(func() { close(s.ready) })
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		began := time.Now()
		s.mu.Lock()
		s.restart = cancel
		s.mu.Unlock()
		err := cluster.WatchAllowed(watching, s.config, uiPause, func(in *report.Input, refused []cluster.Refused) error {
			s.updateObjects(began, in, refused)
			first()
			return nil
		})
		cancel()
		if err == nil {
			continue
		}
		select {
		case <-s.ready:
		default:
			return err
		}
		s.recordOutage(time.Now(), err)
		select {
		case <-ctx.Done():
		case <-time.After(probeInterval):
		}
	}
	return nil
}

// updateObjects ignores watches from before an outage, which do not prove its end.
func (s *uiSource) updateObjects(began time.Time, in *report.Input, refused []cluster.Refused) {
	s.update(func(next *view.State) {
		next.Input, next.Refused = in, nil
		for _, kind := range refused {
			next.Refused = append(next.Refused, view.Refusal{Kind: kind.Kind, Message: kind.Err.Error()})
		}
		if next.APIOutage != nil && began.After(next.APIOutage.Since) {
			next.APIOutage = nil
		}
		if next.APIOutage == nil {
			s.observedAt = time.Now()
		}
	})
}

// recordOutage records that the API server did not respond to a request sent at sent.
func (s *uiSource) recordOutage(sent time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if had := s.next.APIOutage; had != nil && had.Message == err.Error() {
		return
	}
	s.next.APIOutage, s.changed = outage(s.next.APIOutage, sent, s.observedAt, err.Error()), true
}

func outage(previous *view.Outage, since, seen time.Time, message string) *view.Outage {
	if previous == nil {
		return &view.Outage{Since: since, Seen: seen, Message: message}
	}
	return &view.Outage{Since: previous.Since, Seen: previous.Seen, Message: message}
}

// probe restarts the watches after an outage, because their missed events and retry delays are unknown.
func (s *uiSource) probe(ctx context.Context) {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	limit := probeInterval
	if s.config.Timeout > 0 {
		limit = min(limit, s.config.Timeout)
	}
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wakeProbe:
		case <-ticker.C:
		}
		if !s.isActive() && !failed {
			continue
		}
		sent := time.Now()
		err := cluster.Probe(ctx, s.config, limit)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.recordOutage(sent, err)
		default:
			s.recordSuccess(sent, failed)
		}
		failed = err != nil
	}
}

// recordSuccess records an answer; the objects are at least as new, since events arrive earlier.
func (s *uiSource) recordSuccess(sent time.Time, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next.APIOutage == nil {
		s.observedAt = sent
	}
	if failed && s.restart != nil {
		s.restart()
	}
}

func (s *uiSource) update(change func(*view.State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.next)
	s.changed = true
}

func (s *uiSource) State() *view.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.requestedAt) > activeTime {
		for _, wake := range []chan struct{}{s.wakeLive, s.wakeProbe} {
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}
	s.requestedAt = time.Now()
	if s.changed && s.next.Input != nil {
		state := s.next
		s.state, s.changed = &state, false
	}
	return s.state
}

func (s *uiSource) isActive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.requestedAt) <= activeTime
}

// capture returns an environment that captures stdout and warnings.
func (s *uiSource) capture() (env environment, stdout *bytes.Buffer, warnings func() []string) {
	env = s.env
	var stderr bytes.Buffer
	stdout = &bytes.Buffer{}
	env.stdout, env.stderr = stdout, &stderr
	return env, stdout, func() []string {
		var lines []string
		for line := range strings.Lines(stderr.String()) {
			lines = append(lines, strings.TrimPrefix(strings.TrimSpace(line), "millrace: "))
		}
		return lines
	}
}

func (s *uiSource) Query(ctx context.Context, id string) (*ui.Response, error) {
	state := s.State()
	kind, name, _ := strings.Cut(id, "/")
	switch {
	case state == nil:
		return nil, errors.New("the cluster has not been read yet")
	case kind == "node":
		return s.queryNode(ctx, name)
	case kind == "service":
		return s.queryService(ctx, state, name)
	}
	return &ui.Response{}, nil
}

// queryNode returns sessions and rates, either of which may be forbidden.
func (s *uiSource) queryNode(ctx context.Context, node string) (*ui.Response, error) {
	response := &ui.Response{}
	var sessionsErr, ratesErr error
	env, _, warnings := s.capture()
	var group errgroup.Group
	group.Go(func() error {
		states, err := queryBGP(ctx, env, s.config, []string{node}, "peers")
		sessionsErr = err
		for _, bgp := range states {
			response.Sessions = append(response.Sessions, bgp.Peers...)
		}
		return nil
	})
	group.Go(func() error {
		response.Rates, ratesErr = s.rates(ctx, "", []string{node})
		return nil
	})
	_ = group.Wait()
	response.Warnings = warnings()
	if sessionsErr != nil && ratesErr != nil {
		return nil, fmt.Errorf("%s", strings.Join(append([]string{sessionsErr.Error()}, response.Warnings...), "; "))
	}
	for _, err := range []error{sessionsErr, ratesErr} {
		if err != nil {
			response.Warnings = append(response.Warnings, err.Error())
		}
	}
	return response, nil
}

// queryService returns rates only if the aggregated API lacks them.
func (s *uiSource) queryService(ctx context.Context, state *view.State, service string) (*ui.Response, error) {
	in := *state.Input
	in.VIPs = slices.DeleteFunc(slices.Clone(in.VIPs), func(vip millracev1beta1.VIP) bool {
		return !slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1beta1.VIPClaim) bool {
			return claim.Namespace+"/"+claim.Name == service
		})
	})
	response := &ui.Response{}
	if len(in.VIPs) == 0 {
		return response, nil
	}
	env, _, warnings := s.capture()
	query := &list{env: env, config: &s.config, addresses: namedAddresses}
	if err := query.readAnnouncements(ctx, &in); err != nil {
		return nil, err
	}
	result := report.Build(&in)
	response.VIPs = result.VIPs
	for _, problem := range result.Problems {
		if problem.Kind == "VIP" || problem.Reason == report.ReasonAgentUnreachable {
			response.Problems = append(response.Problems, problem)
		}
	}
	response.Warnings = append(warnings(), result.Remarks...)
	if state.Traffic == nil {
		rates, err := s.serviceRates(ctx, state, service)
		if err != nil {
			response.Warnings = append(response.Warnings, "no rates: "+err.Error())
		}
		response.Rates = rates
	}
	return response, nil
}

func (s *uiSource) serviceRates(ctx context.Context, state *view.State, service string) (*report.Rates, error) {
	agents := report.AgentPods(state.Input.Pods)
	if len(agents) > ratesNodes {
		return nil, fmt.Errorf("with more than %d nodes, rates require the aggregated API live.millrace.io", ratesNodes)
	}
	namespace, _, _ := strings.Cut(service, "/")
	rates, err := s.rates(ctx, namespace, nil)
	if err != nil {
		return nil, err
	}
	rates.Frontends = slices.DeleteFunc(rates.Frontends, func(f report.FrontendRate) bool { return f.Service != service })
	// The drops of nodes are not by Service.
	rates.Drops = map[string]float64{}
	return rates, nil
}

// rates measures over two seconds with the agents of nodes, or of all.
func (s *uiSource) rates(ctx context.Context, namespace string, nodes []string) (*report.Rates, error) {
	found, err := cluster.FindAgents(ctx, s.config)
	if err != nil {
		return nil, err
	}
	env, stdout, warnings := s.capture()
	watch := topWatch{env: env, interval: 2 * time.Second, once: true, json: true, namespace: namespace}
	if err := watch.run(ctx, found, defaultNodes(nodes, found)); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.Join(warnings(), "; "))
	}
	var rates report.Rates
	if err := json.Unmarshal(stdout.Bytes(), &rates); err != nil {
		return nil, fmt.Errorf("read the rates: %w", err)
	}
	return &rates, nil
}

func (s *uiSource) Why(ctx context.Context, query ui.WhyQuery) (*ui.Timeline, error) {
	env, _, warnings := s.capture()
	request := &why{env: env, config: &s.config, at: query.At, around: query.Around}
	result, err := request.query(ctx, query.Service, time.Now())
	if err != nil {
		return nil, err
	}
	return &ui.Timeline{Why: result, Warnings: warnings()}, nil
}

func (s *uiSource) Routes(ctx context.Context) (*routing.View, error) {
	in, err := cluster.ReadRouting(ctx, s.config)
	if err != nil {
		return nil, err
	}
	return routing.Compile(in).View(routing.Choice{})
}

func (s *uiSource) Trace(ctx context.Context, packet ui.Packet) (any, error) {
	first, err := traceArguments([]string{packet.Source.String(), packet.Destination.String()}, packet.Protocol, packet.Midstream)
	if err != nil {
		return nil, err
	}
	traced, err := tracePacket(ctx, s.config, packet.Node, first)
	if err != nil && len(traced.Hops) == 0 {
		return nil, err
	}
	response := struct {
		tracePath
		Error string `json:"error,omitempty"`
	}{tracePath: traced}
	if err != nil {
		response.Error = err.Error()
	}
	return response, nil
}
