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
	"github.com/millrace-lb/millrace/lbagent/internal/nodehealth"
)

// Config configures the agent of a node.
type Config struct {
	// Version is reported in LBNodeReport.status.version.
	Version  string
	NodeName string
	// Kubeconfig is the path of a kubeconfig file; empty means the pod's service account.
	Kubeconfig string
	// Uplinks are interface names or globs; empty means the interfaces that carry a default route, one of the
	// node's addresses or a network with a BGP peer.
	Uplinks []string
	// VethTransmit allows transmission by XDP on veth uplinks, whose other ends must run a native XDP program.
	VethTransmit bool
	// ServiceProxy is the service proxy's part of the VIPs' connections during a migration.
	ServiceProxy dataplane.ServiceProxy
	// PinRoot is a directory of a BPF file system for the pinned maps and links.
	PinRoot string
	// MaxFrontends (ports of VIPs), MaxNodeTables (Service ports with cluster-wide endpoints),
	// MaxEndpointTables (Service ports with endpoints on this node), MaxEndpoints (endpoints on this node),
	// MaxVIPs and MaxSourceRanges (prefixes of loadBalancerSourceRanges) are the capacities of the maps.
	MaxFrontends, MaxNodeTables, MaxEndpointTables, MaxEndpoints, MaxVIPs, MaxSourceRanges int
	// Connections is the capacity for TCP connections per address family.
	Connections int
	// Datagrams (UDP flows) and Affinities (clients with session affinity) default to a share of Connections.
	Datagrams, Affinities int
	// Overrides is the capacity per family for flows held by other nodes than the primary; zero means
	// Connections.
	Overrides int
	// MetricsBindAddress and HealthBindAddress are host:port; "0" disables the endpoint.
	MetricsBindAddress, HealthBindAddress string
	// MetricsSecure serves metrics over TLS to authorized users, else over plain HTTP to everyone.
	MetricsSecure bool
	// FrontendMetrics selects the series of frontend counters.
	FrontendMetrics metrics.Frontends
	// MetricsCertDir contains tls.crt and tls.key for the metrics; empty means a self-signed certificate.
	MetricsCertDir string
	// StateDir is the checkpoint's directory in a tmpfs; empty disables it.
	StateDir string
	// Socket is the path of the console's socket; empty disables it.
	Socket string
	// LiveBindAddress is the host:port of the aggregated API; "0" disables it. LiveCertificates is a
	// directory with its ca.crt, tls.crt and tls.key; requests are rejected until they exist.
	LiveBindAddress, LiveCertificates string
	// Relay is the URL of EndpointSlice relays, verified by the same ca.crt; empty uses the API server only.
	Relay string
	// RelayToken is the file of the token for relays (relay.Audience), renewed by the kubelet.
	RelayToken string
	// BFDSocket is the path of the socket of lbbfd (package lbagent/bfd); empty disables BFD.
	BFDSocket string
	// ProbePort is the source UDP port of probes to other nodes; zero disables them.
	ProbePort uint16
	// HealthCheckNodePorts serves the healthCheckNodePorts of Services unless a service proxy does, which is
	// assumed while a process listens at TCP port ServiceProxyPort; zero skips that check.
	HealthCheckNodePorts bool
	ServiceProxyPort     uint16
	// DuplicateDetection probes the node's links for hosts that use the address of a VIP.
	DuplicateDetection bool
	// NATExempt exempts replies of VIPs from NAT by an nftables rule.
	NATExempt bool
	// DrainDelay is how long a departing node announces GRACEFUL_SHUTDOWN (RFC 8326) before it withdraws.
	DrainDelay time.Duration
	// UnreadyDelay is how long a VIP of externalTrafficPolicy Cluster stays announced without a ready endpoint.
	UnreadyDelay time.Duration
	// RemovalGracePeriod is how long objects that were removed in bulk are retained; zero disables it.
	RemovalGracePeriod time.Duration
	// EndpointRetention is how long an endpoint that left its EndpointSlices without terminating keeps its
	// established connections; zero disables it. MaxRetainedEndpoints is the number of such endpoints.
	EndpointRetention    time.Duration
	MaxRetainedEndpoints int
	// WithdrawDelay is how long packets are still forwarded after their route was withdrawn.
	WithdrawDelay time.Duration

	// reportAfter is how long a node is down before it is reported. Only tests set it.
	reportAfter time.Duration
	// proxyGracePeriod is how long a service proxy may be absent. Only tests set it.
	proxyGracePeriod time.Duration
}

// DefaultConfig returns the default configuration, without a node name.
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
		RemovalGracePeriod: 5 * time.Minute,
		EndpointRetention:  time.Hour,
		WithdrawDelay:      time.Second,
		reportAfter:        nodehealth.ReportAfter,

		MaxRetainedEndpoints: 4096,
		HealthCheckNodePorts: true,
		DuplicateDetection:   true,
		ServiceProxyPort:     10256,
		proxyGracePeriod:     healthport.ProxyGracePeriod,
	}
}

// validate names the flags, because the values come from them.
func (c *Config) validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("no node name: set --node-name or the environment variable NODE_NAME"))
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
	if c.RemovalGracePeriod < 0 {
		errs = append(errs, fmt.Errorf("--removal-grace-period is %s, must not be negative", c.RemovalGracePeriod))
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

// Dataplane returns the configuration of the data plane.
func (c *Config) Dataplane() dataplane.Config {
	return dataplane.Config{
		PinRoot:      c.PinRoot,
		Limits:       c.limits(),
		Connections:  c.Connections,
		Datagrams:    c.Datagrams,
		Affinities:   c.Affinities,
		Overrides:    c.Overrides,
		VethTransmit: c.VethTransmit,
		ServiceProxy: c.ServiceProxy,

		TakesRedirects: netdev.TakesRedirects,
	}
}
