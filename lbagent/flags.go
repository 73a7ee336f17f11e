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
	{"max-frontends", func(c *Config) *int { return &c.MaxFrontends }, 1, forwarding.Frontends, "maximum number of ports of VIPs"},
	{"max-node-tables", func(c *Config) *int { return &c.MaxNodeTables }, 1, forwarding.NodeTables,
		"maximum number of node tables: one for each Service with externalTrafficPolicy Cluster or session affinity, and more if its ports or families have different endpoints, or for zones; 36 KiB of memory each. Up to 16 pods take an eighth, and more one for each 128 pods, rounded up to a power of two"},
	{"max-endpoint-tables", func(c *Config) *int { return &c.MaxEndpointTables }, 1, forwarding.EndpointTables,
		"maximum number of endpoint tables: one for each Service port and address family with endpoints on this node; 2 KiB of memory each"},
	{"max-endpoints", func(c *Config) *int { return &c.MaxEndpoints }, 1, forwarding.Endpoints, "maximum number of endpoints on this node"},
	{"max-vips", func(c *Config) *int { return &c.MaxVIPs }, 1, forwarding.VIPs, "maximum number of VIPs"},
	{"max-source-ranges", func(c *Config) *int { return &c.MaxSourceRanges }, 1, forwarding.SourceRanges,
		"maximum number of prefixes of loadBalancerSourceRanges, for each address family; a list counts twice while it changes, and a namespace can use half"},
	{"max-connections", func(c *Config) *int { return &c.Connections }, 1, 0,
		"maximum number of tracked TCP connections, for each address family; about 380 bytes of memory each"},
	{"max-udp-flows", func(c *Config) *int { return &c.Datagrams }, 0, 0,
		"maximum number of replied UDP flows, and of half-open flows, for each address family; about 430 bytes of memory each (default: a quarter of --max-connections)"},
	{"max-affinity-clients", func(c *Config) *int { return &c.Affinities }, 0, 0,
		"maximum number of clients with sessionAffinity ClientIP over TCP, and the same number over UDP and SCTP; 128 to 256 bytes of memory each for either (default: an eighth of --max-connections)"},
	{"max-flow-overrides", func(c *Config) *int { return &c.Overrides }, 0, 0,
		"maximum number of flows that are forwarded to another node than the one in the node table, for each address family; about 64 bytes of memory each (default: as many as --max-connections)"},
	{"max-retained-endpoints", func(c *Config) *int { return &c.MaxRetainedEndpoints }, 1, 0,
		"endpoints of the cluster that --endpoint-retention applies to at the same time; beyond it, the oldest endpoint of the namespace with the most is evicted"},
}

// AddFlags adds the agent's flags with the current values as defaults.
func (c *Config) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.NodeName, "node-name", c.NodeName,
		"name of the Node that the agent runs on (default: the variable NODE_NAME)")
	flags.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig,
		"kubeconfig file (default: the service account of the pod)")
	flags.StringSliceVar(&c.Uplinks, "uplinks", c.Uplinks,
		"names or globs of the interfaces to attach to (default: interfaces with a default route, an address of the node or a network with a BGP peer)")
	flags.BoolVar(&c.VethTransmit, "veth-transmit", c.VethTransmit,
		"transmit with XDP on veth uplinks, too; the peer of each must run a native XDP program, or packets are lost")
	flags.Var(&c.ServiceProxy, "service-proxy-migration",
		"coexistence with the node's service proxy, such as kube-proxy: from leaves its existing connections to VIPs to it during a migration to Millrace; to leaves it new TCP connections, too, during a migration back")
	for _, s := range sizes {
		flags.IntVar(s.value(c), s.flag, *s.value(c), s.usage)
	}
	flags.StringVar(&c.MetricsBindAddress, "metrics-bind-address", c.MetricsBindAddress,
		"host:port that serves /metrics; 0 disables it")
	flags.BoolVar(&c.MetricsSecure, "metrics-secure", c.MetricsSecure,
		"serve metrics over TLS to users authorized to get /metrics; false: plain HTTP without authorization")
	flags.Var(&c.FrontendMetrics, "frontend-metrics",
		"series of frontend counters: of each frontend (all), of each Service (service), or none")
	flags.StringVar(&c.MetricsCertDir, "metrics-cert-dir", c.MetricsCertDir,
		"directory with tls.crt and tls.key for metrics (default: a self-signed certificate)")
	flags.StringVar(&c.HealthBindAddress, "health-probe-bind-address", c.HealthBindAddress,
		"host:port that serves /healthz and /readyz; 0 disables it")
	flags.StringVar(&c.LiveBindAddress, "live-bind-address", c.LiveBindAddress,
		"host:port that serves the aggregated API live.millrace.io over mutual TLS; 0 disables it")
	flags.StringVar(&c.LiveCertificates, "live-certificates", c.LiveCertificates,
		"directory with ca.crt, tls.crt and tls.key for --live-bind-address; they may be created and changed while the agent runs")
	flags.StringVar(&c.Relay, "relay", c.Relay,
		"URL of relays that send changes of EndpointSlices in place of the API server, such as https://millrace-liveapi.millrace-system.svc; their CA is ca.crt of --live-certificates; empty disables relays")
	flags.StringVar(&c.RelayToken, "relay-token", c.RelayToken,
		"file with the token for relays, with the audience millrace-relay")
	flags.StringVar(&c.BFDSocket, "bfd-socket", c.BFDSocket,
		"socket of lbbfd, the process with the BFD sessions; empty disables BFD")
	flags.Uint16Var(&c.ProbePort, "probe-port", c.ProbePort,
		"UDP source port of probes to port 6081 of the other nodes; 0 disables probes")
	flags.BoolVar(&c.HealthCheckNodePorts, "health-check-node-ports", c.HealthCheckNodePorts,
		"answer at the healthCheckNodePort of Services with externalTrafficPolicy Local, if no service proxy of the node does")
	flags.Uint16Var(&c.ServiceProxyPort, "service-proxy-port", c.ServiceProxyPort,
		"TCP port at which the service proxy of the node, such as kube-proxy, serves its health check: while a process listens there, this agent serves no healthCheckNodePorts; 0 disables the check")
	flags.BoolVar(&c.DuplicateDetection, "duplicate-detection", c.DuplicateDetection,
		"detect hosts that use the address of a VIP, by ARP and Neighbor Discovery on the networks of uplinks")
	flags.BoolVar(&c.NATExempt, "nat-exempt", c.NATExempt,
		"exempt replies of VIPs from the CNI's NAT by an nftables rule if the kernel's connection table lacks their connection")
	flags.DurationVar(&c.DrainDelay, "drain-delay", c.DrainDelay,
		"how long a departing node announces its routes with the community GRACEFUL_SHUTDOWN before it withdraws them")
	flags.DurationVar(&c.UnreadyDelay, "unready-delay", c.UnreadyDelay,
		"how long a VIP of externalTrafficPolicy Cluster stays announced without a ready endpoint")
	flags.DurationVar(&c.RemovalGracePeriod, "removal-grace-period", c.RemovalGracePeriod,
		"how long objects removed in bulk, such as all peers, are retained; 0 disables it")
	flags.DurationVar(&c.EndpointRetention, "endpoint-retention", c.EndpointRetention,
		"how long an endpoint that left its EndpointSlices without terminating keeps its established connections; 0 disables it")
	flags.DurationVar(&c.WithdrawDelay, "withdraw-delay", c.WithdrawDelay,
		"how long packets are still accepted after their route was withdrawn")
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
