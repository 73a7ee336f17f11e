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
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

const (
	// uiRest is the minimum interval between readings of the watched objects.
	uiRest = time.Second
	// attention is how long the aggregated API is read after a page last requested the state.
	attention = 10 * time.Second
	// openAgain is the retry interval if the aggregated API is not installed, or forbidden.
	openAgain = 30 * time.Second
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
	// wake and wakeProbe are signalled when a page requests the state after a pause.
	wake, wakeProbe chan struct{}
	// announcementsOld is true if announcements have changed since they were read.
	announcementsOld atomic.Bool

	mu     sync.Mutex
	looked time.Time
	// state is shared with readers and immutable; next collects changes.
	state                  *view.State
	next                   view.State
	fresh                  bool
	answered, liveAnswered time.Time
	again                  context.CancelFunc
}

func newUISource(env environment, config cluster.Config) *uiSource {
	s := &uiSource{env: env, config: config, ready: make(chan struct{})}
	s.wake, s.wakeProbe = make(chan struct{}, 1), make(chan struct{}, 1)
	s.announcementsOld.Store(true)
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
		cluster.FollowAnnouncements(ctx, s.config, func() { s.announcementsOld.Store(true) })
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
		s.again = cancel
		s.mu.Unlock()
		err := cluster.WatchAllowed(watching, s.config, uiRest, func(in *report.Input, refused []cluster.Refused) error {
			s.putObjects(began, in, refused)
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
		s.away(time.Now(), err)
		select {
		case <-ctx.Done():
		case <-time.After(probeInterval):
		}
	}
	return nil
}

// putObjects ignores watches from before an outage, which do not prove its end.
func (s *uiSource) putObjects(began time.Time, in *report.Input, refused []cluster.Refused) {
	s.put(func(next *view.State) {
		next.Input, next.Refused = in, nil
		for _, kind := range refused {
			next.Refused = append(next.Refused, view.Refusal{Kind: kind.Kind, Message: kind.Err.Error()})
		}
		if next.Away != nil && began.After(next.Away.Since) {
			next.Away = nil
		}
		if next.Away == nil {
			s.answered = time.Now()
		}
	})
}

// away records that the API server did not answer a request sent at asked.
func (s *uiSource) away(asked time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if had := s.next.Away; had != nil && had.Message == err.Error() {
		return
	}
	s.next.Away, s.fresh = outage(s.next.Away, asked, s.answered, err.Error()), true
}

func outage(had *view.Outage, since, seen time.Time, message string) *view.Outage {
	if had == nil {
		return &view.Outage{Since: since, Seen: seen, Message: message}
	}
	return &view.Outage{Since: had.Since, Seen: had.Seen, Message: message}
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
		if !s.attended() && !failed {
			continue
		}
		asked := time.Now()
		err := cluster.Probe(ctx, s.config, limit)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.away(asked, err)
		default:
			s.backAgain(asked, failed)
		}
		failed = err != nil
	}
}

// backAgain records an answer; the objects are at least as new, since events arrive earlier.
func (s *uiSource) backAgain(asked time.Time, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next.Away == nil {
		s.answered = asked
	}
	if failed && s.again != nil {
		s.again()
	}
}

func (s *uiSource) put(change func(*view.State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.next)
	s.fresh = true
}

func (s *uiSource) State() *view.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.looked) > attention {
		for _, wake := range []chan struct{}{s.wake, s.wakeProbe} {
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}
	s.looked = time.Now()
	if s.fresh && s.next.Input != nil {
		state := s.next
		s.state, s.fresh = &state, false
	}
	return s.state
}

func (s *uiSource) attended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.looked) <= attention
}

// quiet returns an environment that captures stdout and warnings.
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

// askNode returns sessions and rates, either of which may be forbidden.
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
	answer.Warnings = warnings()
	if sessionsErr != nil && ratesErr != nil {
		return nil, fmt.Errorf("%s", strings.Join(append([]string{sessionsErr.Error()}, answer.Warnings...), "; "))
	}
	for _, err := range []error{sessionsErr, ratesErr} {
		if err != nil {
			answer.Warnings = append(answer.Warnings, err.Error())
		}
	}
	return answer, nil
}

// askService returns rates only if the aggregated API lacks them.
func (s *uiSource) askService(ctx context.Context, state *view.State, service string) (*ui.Answer, error) {
	in := *state.Input
	in.VIPs = slices.DeleteFunc(slices.Clone(in.VIPs), func(vip millracev1beta1.VIP) bool {
		return !slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1beta1.VIPClaim) bool {
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

func (s *uiSource) Why(ctx context.Context, query ui.WhyQuery) (*ui.Timeline, error) {
	env, _, warnings := s.quiet()
	asked := &why{env: env, config: &s.config, at: query.At, around: query.Around}
	told, err := asked.tell(ctx, query.Service, time.Now())
	if err != nil {
		return nil, err
	}
	return &ui.Timeline{Why: told, Warnings: warnings()}, nil
}

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
		tracePath
		Error string `json:"error,omitempty"`
	}{tracePath: traced}
	if err != nil {
		answer.Error = err.Error()
	}
	return answer, nil
}
