// SPDX-License-Identifier: Apache-2.0

// Package collect continuously copies counters and announcements of all nodes to a store, and queries flows
// and drops on request.
package collect

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/api/live"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
)

const (
	// firstPause and lastPause are the minimum and maximum retry interval of an agent that fails.
	firstPause, lastPause = 250 * time.Millisecond, 8 * time.Second
	// grace is added to the time that an agent may wait, for the time limit of a request.
	grace = 10 * time.Second
	// queryTimeout is the time limit for querying one agent, and maxQueries the maximum number of concurrent
	// queries.
	queryTimeout, maxQueries = 5 * time.Second, 32
	// connecting limits concurrent connection attempts, because each requires a TLS handshake.
	connecting = 16
	// wholes limits concurrent requests of complete states: decoding one with 10,000 VIPs takes a megabyte.
	wholes = 4
)

// Node is a node with an agent.
type Node struct {
	Name    string
	Address netip.Addr
}

// Options configures a Collector.
type Options struct {
	Store *store.Store
	// Directory contains ca.crt, client.crt and client.key, which are read for each new connection.
	Directory string
	Port      uint16
	// Report is called with the error when requests to a node start to fail, and with nil when they succeed
	// again.
	Report func(node string, err error)
}

// Collector queries agents. It is safe for concurrent use.
type Collector struct {
	options Options
	client  *http.Client

	whole chan struct{}

	mu     sync.Mutex
	agents map[string]*agent
}

type agent struct {
	node Node
	base string
	stop context.CancelFunc
	// failing contains the failing paths. The loops for traffic and state share it.
	mu      sync.Mutex
	failing map[string]bool
}

// New returns a collector without nodes.
func New(options Options) *Collector {
	return &Collector{
		options: options, client: newClient(options.Directory), whole: make(chan struct{}, wholes), agents: map[string]*agent{},
	}
}

// SetNodes sets the nodes whose data the collector copies until the context ends.
func (c *Collector) SetNodes(ctx context.Context, nodes []Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wanted, names := map[string]bool{}, make([]string, 0, len(nodes))
	for _, node := range nodes {
		wanted[node.Name] = true
		names = append(names, node.Name)
	}
	c.options.Store.SetNodes(names, time.Now())
	for name, agent := range c.agents {
		if !wanted[name] {
			agent.stop()
			delete(c.agents, name)
		}
	}
	for _, node := range nodes {
		before := c.agents[node.Name]
		if before != nil && before.node == node {
			continue
		}
		if before != nil {
			before.stop()
		}
		agentContext, stop := context.WithCancel(ctx)
		address := netip.AddrPortFrom(node.Address, c.options.Port)
		made := &agent{node: node, base: "https://" + address.String(), stop: stop, failing: map[string]bool{}}
		c.agents[node.Name] = made
		go c.follow(agentContext, made)
	}
}

var traffics = sync.Pool{New: func() any { return new(live.Traffic) }}

// follow copies the traffic and the state of an agent. It requests the state after the first response with
// traffic, so that both use one connection.
func (c *Collector) follow(ctx context.Context, a *agent) {
	var others sync.WaitGroup
	defer others.Wait()
	cursor, connected := "", false
	c.repeat(ctx, a, live.PathTraffic, func() error {
		err := c.fetch(ctx, a, live.PathTraffic, since(cursor), func(body []byte) (string, error) {
			traffic, _ := traffics.Get().(*live.Traffic)
			defer traffics.Put(traffic)
			if err := traffic.UnmarshalBinary(body); err != nil || traffic.Node != a.node.Name {
				return traffic.Node, err
			}
			cursor = traffic.Cursor
			c.options.Store.SetTraffic(a.node.Name, traffic, time.Now())
			return traffic.Node, nil
		})
		if err != nil {
			return err
		}
		if !connected {
			connected = true
			others.Go(func() { c.followState(ctx, a) })
		}
		return nil
	})
}

func (c *Collector) followState(ctx context.Context, a *agent) {
	cursor := ""
	c.repeat(ctx, a, live.PathState, func() error {
		state := &live.State{}
		var err error
		if cursor == "" {
			err = c.getWhole(ctx, a, state)
		} else {
			err = c.get(ctx, a, live.PathState, since(cursor), state)
		}
		if err != nil {
			if ctx.Err() == nil {
				c.options.Store.StateFailed(a.node.Name, time.Now())
			}
			// Request the complete state next: it is returned at once, but a request for changes would wait.
			cursor = ""
			return err
		}
		cursor = state.Cursor
		c.options.Store.SetState(a.node.Name, state, time.Now())
		return nil
	})
}

func (c *Collector) getWhole(ctx context.Context, a *agent, state *live.State) error {
	select {
	case c.whole <- struct{}{}:
		defer func() { <-c.whole }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	return c.get(ctx, a, live.PathState, nil, state)
}

func since(cursor string) url.Values {
	if cursor == "" {
		return nil
	}
	return url.Values{live.ParameterSince: {cursor}}
}

// repeat calls query until the context ends. While it fails, the intervals increase.
func (c *Collector) repeat(ctx context.Context, a *agent, path string, query func() error) {
	pause := firstPause
	for ctx.Err() == nil {
		err := query()
		if ctx.Err() != nil {
			return
		}
		a.report(path, err, c.options.Report)
		if err == nil {
			pause = firstPause
			continue
		}
		select {
		case <-ctx.Done():
		// Distribute the requests to the agents over time.
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, lastPause)
	}
}

func (a *agent) report(path string, err error, report func(string, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.failing)
	if err != nil {
		a.failing[path] = true
	} else {
		delete(a.failing, path)
	}
	switch {
	case before == 0 && err != nil:
		report(a.node.Name, err)
	case before > 0 && len(a.failing) == 0:
		report(a.node.Name, nil)
	}
}

// Query selects the flows or drops of a Service.
type Query struct {
	Service store.Name
	// Client is an address or a prefix of clients; empty selects all.
	Client string
	// Limit is at most live.MaxLimit.
	Limit int
}

// Flows returns the flows on the given nodes, and the names of nodes that did not answer.
func (c *Collector) Flows(ctx context.Context, nodes []string, query Query) (found []live.Flows, silent []string) {
	return queryAgents[live.Flows](ctx, c, nodes, live.PathFlows, query)
}

// Drops returns the drops on all nodes, the names of nodes that did not answer, and the number of nodes.
func (c *Collector) Drops(ctx context.Context, query Query) (found []live.Drops, silent []string, all int) {
	c.mu.Lock()
	nodes := make([]string, 0, len(c.agents))
	for name := range c.agents {
		nodes = append(nodes, name)
	}
	c.mu.Unlock()
	found, silent = queryAgents[live.Drops](ctx, c, nodes, live.PathDrops, query)
	return found, silent, len(nodes)
}

func queryAgents[Answer any](ctx context.Context, c *Collector, nodes []string, path string, query Query) (found []Answer, silent []string) {
	parameters := url.Values{
		live.ParameterService: {query.Service.Namespace + "/" + query.Service.Name},
		live.ParameterLimit:   {strconv.Itoa(query.Limit)},
	}
	if query.Client != "" {
		parameters.Set(live.ParameterClient, query.Client)
	}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(maxQueries)
	for _, name := range nodes {
		group.Go(func() error {
			c.mu.Lock()
			agent := c.agents[name]
			c.mu.Unlock()
			answer, ok := new(Answer), false
			if agent != nil {
				ok = c.get(ctx, agent, path, parameters, answer) == nil
			}
			mu.Lock()
			defer mu.Unlock()
			if ok {
				found = append(found, *answer)
			} else {
				silent = append(silent, name)
			}
			return nil
		})
	}
	_ = group.Wait() // The functions return no errors.
	return found, silent
}
