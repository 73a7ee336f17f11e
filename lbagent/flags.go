// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/plan"
)

type size struct {
	flag  string
	value func(*Config) *int
	// minimum is the smallest valid value: 0 if 0 selects a default.
	minimum  int
	capacity forwarding.Capacity
	usage    string
}

var sizes = []size{
	{"max-frontends", func(c *Config) *int { return &c.MaxFrontends }, 1, forwarding.Frontends, "ports of VIPs that fit"},
	{"max-node-tables", func(c *Config) *int { return &c.MaxNodeTables }, 1, forwarding.NodeTables,
		"node tables that fit: one for each Service with externalTrafficPolicy Cluster or session affinity, and more where its ports or families have other endpoints, or zones; 36 KiB of memory each. Up to 16 pods take an eighth, and more one for each 128 pods, rounded up to a power of two"},
	{"max-endpoint-tables", func(c *Config) *int { return &c.MaxEndpointTables }, 1, forwarding.EndpointTables,
		"endpoint tables that fit: one for each Service port and address family with endpoints on this node; 2 KiB of memory each"},
	{"max-endpoints", func(c *Config) *int { return &c.MaxEndpoints }, 1, forwarding.Endpoints, "endpoints on this node that fit"},
	{"max-vips", func(c *Config) *int { return &c.MaxVIPs }, 1, forwarding.VIPs, "VIPs that fit"},
	{"max-source-ranges", func(c *Config) *int { return &c.MaxSourceRanges }, 1, forwarding.SourceRanges,
		"prefixes of loadBalancerSourceRanges that fit, for each address family; a list is counted twice while it changes, and one namespace gets half"},
	{"connections", func(c *Config) *int { return &c.Connections }, 1, 0,
		"TCP connections that are remembered, for each address family; about 380 bytes of memory each"},
	{"udp-flows", func(c *Config) *int { return &c.Datagrams }, 0, 0,
		"the same for answered flows of UDP, and for half-open flows; about 430 bytes of memory each (default: a quarter of --connections)"},
	{"affinity-clients", func(c *Config) *int { return &c.Affinities }, 0, 0,
		"clients whose endpoint is remembered for sessionAffinity ClientIP, over TCP and as many over UDP and SCTP; 128 to 256 bytes of memory each for either (default: an eighth of --connections)"},
	{"exceptions", func(c *Config) *int { return &c.Exceptions }, 0, 0,
		"flows that other nodes hold against their row and that are sent straight there, for each address family; about 64 bytes of memory each (default: as many as --connections)"},
	{"max-retained-endpoints", func(c *Config) *int { return &c.MaxRetainedEndpoints }, 1, 0,
		"endpoints of the cluster that --endpoint-retention applies to at the same time; above it, the namespace with the most loses its oldest"},
}

// AddFlags adds the agent's flags with the current values as defaults.
func (c *Config) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.NodeName, "node-name", c.NodeName,
		"name of the Node that the agent runs on (default: the variable NODE_NAME)")
	flags.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig,
		"kubeconfig file (default: the service account of the pod)")
	flags.StringSliceVar(&c.Uplinks, "uplinks", c.Uplinks,
		"names of the interfaces to attach to, or globs of names (default: those that carry a default route, the node's addresses or a network with a BGP peer)")
	flags.BoolVar(&c.VethTransmit, "veth-transmit", c.VethTransmit,
		"send by XDP on veth uplinks, too; the other end of each must run an XDP program in native mode, else packets are lost")
	flags.Var(&c.ServiceProxy, "service-proxy",
		"while the cluster moves from another load balancer: connections to VIPs that the node's service proxy has stay with it (yields); while it moves back: new ones of TCP are the service proxy's, too (takes)")
	for _, s := range sizes {
		flags.IntVar(s.value(c), s.flag, *s.value(c), s.usage)
	}
	flags.StringVar(&c.MetricsBindAddress, "metrics-bind-address", c.MetricsBindAddress,
		"host:port that serves /metrics; 0: none")
	flags.BoolVar(&c.MetricsSecure, "metrics-secure", c.MetricsSecure,
		"serve metrics over TLS, and only to users who may get /metrics; false: plain HTTP for everybody")
	flags.Var(&c.FrontendMetrics, "frontend-metrics",
		"series of the counters of frontends: of each one (all), their sums by Service (service), or none")
	flags.StringVar(&c.MetricsCertDir, "metrics-cert-dir", c.MetricsCertDir,
		"directory with tls.crt and tls.key for metrics (default: a certificate that signs itself)")
	flags.StringVar(&c.HealthBindAddress, "health-probe-bind-address", c.HealthBindAddress,
		"host:port that serves /healthz and /readyz; 0: none")
	flags.StringVar(&c.LiveBindAddress, "live-bind-address", c.LiveBindAddress,
		"host:port that answers the aggregated API live.millrace.io, over TLS and to nobody else; 0: none")
	flags.StringVar(&c.LiveCertificates, "live-certificates", c.LiveCertificates,
		"directory with ca.crt, tls.crt and tls.key for --live-bind-address; they may come and change while the agent runs")
	flags.StringVar(&c.Relay, "relay", c.Relay,
		"URL of relays that tell what changes of EndpointSlices in place of the API server, as https://millrace-liveapi.millrace-system.svc; --live-certificates has their ca.crt; empty: none")
	flags.StringVar(&c.RelayToken, "relay-token", c.RelayToken,
		"file of a token with the audience millrace-relay, which the agent presents to relays")
	flags.StringVar(&c.BFDSocket, "bfd-socket", c.BFDSocket,
		"path of the socket of lbbfd, which holds the BFD sessions; empty: none")
	flags.Uint16Var(&c.ProbePort, "probe-port", c.ProbePort,
		"UDP port from which the other nodes are asked, at their port 6081, whether they take packets; 0: they are not asked")
	flags.BoolVar(&c.HealthCheckNodePorts, "health-check-node-ports", c.HealthCheckNodePorts,
		"answer at the healthCheckNodePort of Services with externalTrafficPolicy Local, where no service proxy of the node does")
	flags.Uint16Var(&c.ServiceProxyPort, "service-proxy-port", c.ServiceProxyPort,
		"TCP port at which the service proxy of the node, such as kube-proxy, tells its health: while anybody listens there, healthCheckNodePorts are left to it; 0: nobody is looked for")
	flags.BoolVar(&c.DuplicateDetection, "duplicate-detection", c.DuplicateDetection,
		"ask by ARP and Neighbor Discovery on the networks of uplinks whether a host has the address of a VIP")
	flags.BoolVar(&c.NATExempt, "nat-exempt", c.NATExempt,
		"keep NAT of the CNI from replies of VIPs whose connection the kernel has forgotten, by a rule of nftables")
	flags.DurationVar(&c.DrainDelay, "drain-delay", c.DrainDelay,
		"how long a departing node announces its routes with the community GRACEFUL_SHUTDOWN before it withdraws them")
	flags.DurationVar(&c.UnreadyDelay, "unready-delay", c.UnreadyDelay,
		"how long a VIP of externalTrafficPolicy Cluster stays announced without a ready endpoint")
	flags.DurationVar(&c.RemovalHold, "removal-hold", c.RemovalHold,
		"how long objects count as present that were removed many at once, such as all peers; 0: not at all")
	flags.DurationVar(&c.EndpointRetention, "endpoint-retention", c.EndpointRetention,
		"how long an endpoint that left its EndpointSlices without terminating keeps its established connections; 0: not at all")
	flags.DurationVar(&c.WithdrawDelay, "withdraw-delay", c.WithdrawDelay,
		"how long packets are still taken after their route was withdrawn")
}

func (c *Config) checkSizes() []error {
	var errs []error
	for _, s := range sizes {
		if value := *s.value(c); value < s.minimum {
			errs = append(errs, fmt.Errorf("--%s is %d, must be at least %d", s.flag, value, s.minimum))
		}
	}
	return errs
}

// nameFlags adds the flag that raises the exceeded capacity to each problem.
func nameFlags(problems []plan.Problem) []model.Problem {
	named := make([]model.Problem, 0, len(problems))
	for _, problem := range problems {
		problem.Message += advice(problem.Full)
		named = append(named, problem.Problem)
	}
	return named
}

func nameFlag(err error) error {
	var full *dataplane.FullError
	if errors.As(err, &full) {
		return fmt.Errorf("%w%s", err, advice(full.Capacity))
	}
	return err
}

// advice returns the suffix of a message about an exceeded capacity, or "" if no flag sets the capacity.
func advice(full forwarding.Capacity) string {
	for _, s := range sizes {
		if s.capacity != 0 && s.capacity == full {
			return fmt.Sprintf("; raise --%s of the agents", s.flag)
		}
	}
	return ""
}
