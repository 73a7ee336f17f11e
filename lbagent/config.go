// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"fmt"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/healthport"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/watch"
)

// Config is what a node's agent is told at its start.
type Config struct {
	// Version of the program, for LBNodeReport.status.version.
	Version string
	// NodeName is the name of the Node that the agent runs on.
	NodeName string
	// Kubeconfig is the path of a kubeconfig file. Empty: the service account
	// of the pod.
	Kubeconfig string
	// Uplinks are names of interfaces, or globs of names. Empty: those that
	// carry a default route, the node's addresses or a network with a BGP peer.
	Uplinks []string
	// VethTransmit lets veth uplinks send by XDP. The other end of each must run an XDP program
	// in native mode.
	VethTransmit bool
	// ServiceProxy is what the node's service proxy has of the VIPs' connections, while a cluster
	// moves from another load balancer, or back.
	ServiceProxy dataplane.ServiceProxy
	// PinRoot is the directory, in a BPF file system, in which maps and links
	// outlive the agent.
	PinRoot string
	// MaxFrontends, MaxNodeTables, MaxEndpointTables, MaxEndpoints, MaxVIPs and
	// MaxSourceRanges are the capacities of the maps: ports of VIPs, Service
	// ports with cluster-wide endpoints, Service ports with endpoints on this
	// node, endpoints on this node, VIPs, prefixes that Services admit.
	MaxFrontends, MaxNodeTables, MaxEndpointTables, MaxEndpoints, MaxVIPs, MaxSourceRanges int
	// Connections is how many connections are remembered, for each address
	// family.
	Connections int
	// Datagrams is the same for UDP, Affinities for clients of Services with
	// session affinity. Zero means a share of Connections.
	Datagrams, Affinities int
	// Exceptions is how many flows are remembered that other nodes hold against
	// their row, for each address family. Zero means as many as Connections.
	Exceptions int
	// MetricsBindAddress is where metrics are served, and HealthBindAddress where
	// health is, as host:port. "0": nowhere.
	MetricsBindAddress, HealthBindAddress string
	// MetricsSecure serves metrics over TLS to those whom the API server knows and
	// permits it. Otherwise everybody gets them over plain HTTP.
	MetricsSecure bool
	// FrontendMetrics is for what there are series of the counters of frontends.
	FrontendMetrics metrics.Frontends
	// MetricsCertDir has tls.crt and tls.key for the metrics. Empty: a certificate
	// that the agent signs itself.
	MetricsCertDir string
	// StateDir is the directory, in a tmpfs, in which objects are kept for an agent that finds
	// the API server away. Empty: they are not kept.
	StateDir string
	// Socket is the path of the socket at which Drops, Top and Trace ask. Empty:
	// none.
	Socket string
	// LiveBindAddress is where the aggregated API is answered, as host:port. "0": nowhere.
	// LiveCertificates is the directory with its ca.crt, tls.crt and tls.key, which may be empty
	// at first: then nobody is answered.
	LiveBindAddress, LiveCertificates string
	// Relay is the URL of relays of EndpointSlices, whose certificate the same ca.crt vouches for.
	// Empty: the API server alone is asked.
	Relay string
	// RelayToken is the file of the token for relays (relay.Audience), which the kubelet renews.
	RelayToken string
	// BFDSocket is the path of the socket of the process that holds the BFD sessions (package
	// lbagent/bfd). Empty: there is none.
	BFDSocket string
	// ProbePort is the UDP port that other nodes are asked from whether they take packets. Zero:
	// they are not asked.
	ProbePort uint16
	// HealthCheckNodePorts has the agent answer at the healthCheckNodePorts of Services, where no
	// service proxy does. While anybody listens at TCP port ServiceProxyPort of the node there is
	// one; zero: nobody is looked for.
	HealthCheckNodePorts bool
	ServiceProxyPort     uint16
	// DuplicateDetection asks on the node's links whether a host has the address of a VIP.
	DuplicateDetection bool
	// NATExempt keeps replies of VIPs from NAT by a rule of nftables.
	NATExempt bool
	// DrainDelay is how long a node that departs announces its routes as those to be left
	// (RFC 8326), before it withdraws them.
	DrainDelay time.Duration
	// UnreadyDelay is how long a VIP of externalTrafficPolicy Cluster stays announced when it has
	// no ready endpoint any more.
	UnreadyDelay time.Duration
	// RemovalHold is how long objects count as present that were removed many at once. Zero: not
	// at all.
	RemovalHold time.Duration
	// EndpointRetention is how long an endpoint that left its EndpointSlices without terminating keeps
	// its established connections; 0 disables it. MaxRetainedEndpoints is the number of such endpoints.
	EndpointRetention    time.Duration
	MaxRetainedEndpoints int
	// WithdrawDelay is how long what a withdrawn route led to keeps working,
	// so that routers have stopped sending by then.
	WithdrawDelay time.Duration

	// reportAfter is how long a node is down before the report has it. It has no flag: only tests
	// have no time for it.
	reportAfter time.Duration
	// proxyPatience is how long a service proxy may be away. The same holds.
	proxyPatience time.Duration
}

// DefaultConfig returns the defaults of everything but the node.
func DefaultConfig() Config {
	return Config{
		Version:            "dev",
		PinRoot:            "/sys/fs/bpf/millrace",
		MaxFrontends:       8192,
		MaxNodeTables:      1024,
		MaxEndpointTables:  2048,
		MaxEndpoints:       16384,
		MaxVIPs:            8192,
		MaxSourceRanges:    16384,
		Connections:        262144,
		MetricsBindAddress: ":7480",
		MetricsSecure:      true,
		FrontendMetrics:    metrics.EachFrontend,
		HealthBindAddress:  "127.0.0.1:7481",
		StateDir:           "/run/millrace-agent",
		Socket:             consoleapi.Socket,
		LiveBindAddress:    "0",
		LiveCertificates:   "/etc/millrace/live",
		RelayToken:         "/var/run/secrets/millrace/relay-token",
		BFDSocket:          control.Socket,
		ProbePort:          7482,
		NATExempt:          true,
		DrainDelay:         5 * time.Second,
		UnreadyDelay:       2 * time.Second,
		RemovalHold:        5 * time.Minute,
		EndpointRetention:  time.Hour,
		WithdrawDelay:      time.Second,
		reportAfter:        watch.ReportAfter,

		MaxRetainedEndpoints: 4096,
		HealthCheckNodePorts: true,
		DuplicateDetection:   true,
		ServiceProxyPort:     10256,
		proxyPatience:        healthport.ProxyPatience,
	}
}

// validate names the flags, since that is where the values come from.
func (c *Config) validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("no node name: set --node-name or the variable NODE_NAME"))
	}
	if err := netdev.CheckPatterns(c.Uplinks); err != nil {
		errs = append(errs, fmt.Errorf("--uplinks: %w", err))
	}
	if c.DrainDelay < 0 {
		errs = append(errs, fmt.Errorf("--drain-delay is %s, must not be negative", c.DrainDelay))
	}
	if c.UnreadyDelay < 0 {
		errs = append(errs, fmt.Errorf("--unready-delay is %s, must not be negative", c.UnreadyDelay))
	}
	if c.RemovalHold < 0 {
		errs = append(errs, fmt.Errorf("--removal-hold is %s, must not be negative", c.RemovalHold))
	}
	if c.WithdrawDelay < 0 {
		errs = append(errs, fmt.Errorf("--withdraw-delay is %s, must not be negative", c.WithdrawDelay))
	}
	if c.EndpointRetention < 0 {
		errs = append(errs, fmt.Errorf("--endpoint-retention is %s, must not be negative", c.EndpointRetention))
	}
	errs = append(errs, c.checkSizes()...)
	return errors.Join(errs...)
}

func (c *Config) limits() forwarding.Limits {
	return forwarding.Limits{
		Frontends:      c.MaxFrontends,
		NodeTables:     c.MaxNodeTables,
		EndpointTables: c.MaxEndpointTables,
		Endpoints:      c.MaxEndpoints,
		VIPs:           c.MaxVIPs,
		SourceRanges:   c.MaxSourceRanges,
	}
}

// Dataplane is the configuration of the data plane.
func (c *Config) Dataplane() dataplane.Config {
	return dataplane.Config{
		PinRoot:      c.PinRoot,
		Limits:       c.limits(),
		Connections:  c.Connections,
		Datagrams:    c.Datagrams,
		Affinities:   c.Affinities,
		Exceptions:   c.Exceptions,
		VethTransmit: c.VethTransmit,
		ServiceProxy: c.ServiceProxy,

		TakesRedirects: netdev.TakesRedirects,
	}
}
