// SPDX-License-Identifier: Apache-2.0

// Package dataplane loads, attaches and pins a node's BPF programs and maps, so that forwarding outlives the
// process, and reads and writes the maps in the types of package forwarding. It requires Linux 6.1, CAP_BPF,
// CAP_NET_ADMIN and CAP_PERFMON.
//
// Config.PinRoot contains the directories maps, with one pin per map, and links, with one entry per attached
// program.
package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Config specifies the pin directory and the sizes of the maps.
type Config struct {
	// PinRoot is a directory of a bpf file system, such as /sys/fs/bpf/millrace. It is created if missing.
	PinRoot string
	// Limits are the sizes of the forwarding maps, all positive. Ids and slots range from 1 to the limit.
	Limits forwarding.Limits
	// Connections is the number of established TCP connections per address family; the least recently used
	// one is evicted. About 500 bytes each, over both families and directions, are allocated at load. At
	// least three times as many evicted connections keep a record of their endpoint.
	Connections int
	// Datagrams is the same for answered UDP flows. Zero means a quarter of Connections, at least 4,096.
	Datagrams int
	// Affinities is the number of clients with session affinity over TCP, and the same over other protocols.
	// Zero means an eighth of Connections, at least 4,096.
	Affinities int
	// Overrides is the number of flows per address family that are sent to another node than their row's
	// primary, at 128 bytes each. Zero means Connections.
	Overrides int
	// HalfOpen is the number of half-open flows per table, by default Connections/8 within 4,096 and 262,144.
	HalfOpen int
	// MissesPerVIP is the maximum rate of a VIP's packets, per second and protocol, of flows unknown to all
	// nodes. Zero means the programs' defaults, which are lower for TCP (bpf/src/lookup_limit.h).
	MissesPerVIP uint32
	// Seed is the seed of the flow hash, equal on all nodes. Maps filled with another seed are rebuilt.
	Seed flowhash.Seed
	// ServiceProxy is the service proxy's part of the VIPs' connections.
	ServiceProxy ServiceProxy
	// Clsact uses clsact filters instead of tcx, as kernels before 6.6 do. Attached programs are not moved.
	Clsact bool
	// VethTransmit allows XDP to transmit on veth uplinks, whose other ends must run a native XDP program.
	VethTransmit bool
	// TakesRedirects reports whether an interface's driver transmits redirected frames; nil means all do.
	TakesRedirects func(device int) (bool, error)
}

// Dataplane is the loaded data plane of this node. Its methods are safe for concurrent use, except Close.
type Dataplane struct {
	limits      forwarding.Limits
	connections int
	hash        flowhash.Constants
	hooks       attach.Hooks

	config   Config
	set      *mapSet
	maps     bpf.DatapathMaps
	programs bpf.DatapathPrograms

	// migrated are the frontends whose new connections bypass the service proxy.
	migrated map[forwarding.FrontendID]bool
	// mu serializes writers.
	mu          sync.Mutex
	attachments []Attachment
	// everAttached is true once this node has received packets. Rows written before are older on the other nodes.
	everAttached bool
	// transmitDropsErr is the reason why losses are not counted, or nil.
	transmitDropsErr    error
	countsTransmitDrops bool
	interfaceNames      interfaceNames
	// self, tunnelPolicy, ingress, tunnelKeys and bloom mirror maps.
	self bpf.DatapathSelf
	// nodes and hops mirror the map nodes; hops may contain nodes that are not in the map yet.
	nodes map[forwarding.NodeID]bpf.DatapathNode
	hops  map[forwarding.NodeID]forwarding.Hop
	down  map[forwarding.NodeID]bool
	// unfinished are the nodes whose last change failed halfway, with all addresses possibly accepted.
	unfinished   map[forwarding.NodeID][]bpf.DatapathAddress
	tunnelPolicy bpf.DatapathTunnelPolicy
	ingress      map[forwarding.NodeID]bpf.DatapathIngressInterfaces
	tunnelKeys   [forwarding.MaxTunnelKey + 1]bpf.DatapathTunnelKey
	bloom        *vipBloom

	// swept is the last sweep of overrides; rowsWritten is true if rows were written since it began.
	swept       sweepState
	rowsWritten bool
	rowUpdates  []byte
	// attached is true once no program of a previous process is attached.
	attached bool

	// sweepMu serializes SweepConnections. recordedBits is the number of bits set in the filter after the
	// last sweep.
	sweepMu      sync.Mutex
	recordedBits int

	// tracing serializes traces, which share the map of the record.
	tracing sync.Mutex
	tracer  *ebpf.Program
}

// Open loads the programs with the pinned maps, or with new ones. Attached programs continue to forward until
// Attach replaces them. Maps of another size or layout are copied, or rebuilt if they cannot be copied; see
// Adoption.
func Open(cfg Config) (*Dataplane, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	linkDir := filepath.Join(cfg.PinRoot, linkDirectory)
	if err := os.MkdirAll(linkDir, 0o700); err != nil {
		return nil, fmt.Errorf("create pin directory %s: %w; is a bpf file system mounted there?", linkDir, err)
	}
	spec, err := newSpec(cfg)
	if err != nil {
		return nil, err
	}
	set, err := openMaps(cfg.PinRoot, spec, cfg.Seed)
	if err != nil {
		return nil, err
	}
	d := &Dataplane{
		limits:       cfg.Limits,
		connections:  cfg.Connections,
		hash:         cfg.Seed.Constants(),
		hooks:        attach.Hooks{Directory: linkDir, Clsact: cfg.Clsact},
		config:       cfg,
		unfinished:   map[forwarding.NodeID][]bpf.DatapathAddress{},
		set:          set,
		everAttached: set.adoption.Kind != Created && set.adoption.Kind != Rebuilt,
	}
	if err := d.load(spec); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Dataplane) load(spec *ebpf.CollectionSpec) error {
	var objects bpf.DatapathObjects
	err := spec.LoadAndAssign(&objects, &ebpf.CollectionOptions{MapReplacements: d.set.programMaps()})
	if err != nil {
		return fmt.Errorf("load the BPF programs: %w", err)
	}
	d.maps, d.programs = objects.DatapathMaps, objects.DatapathPrograms
	if err := d.set.commit(); err != nil {
		return err
	}
	return d.restore()
}

// restore reads the maps' state and deletes addresses of an interrupted change.
func (d *Dataplane) restore() error {
	if err := d.maps.Settings.Lookup(uint32(0), &d.self); err != nil {
		return fmt.Errorf("read map settings: %w", err)
	}
	var err error
	if d.nodes, d.hops, err = d.readNodes(); err != nil {
		return err
	}
	var stale []bpf.DatapathAddress
	err = readMap(d.maps.NodeAddresses, func(address bpf.DatapathAddress, id uint32) {
		if !nodeHas(d.nodes[forwarding.NodeID(id)], address) {
			stale = append(stale, address)
		}
	})
	if err != nil {
		return fmt.Errorf("read map node_addresses: %w", err)
	}
	for _, address := range stale {
		if err := d.maps.NodeAddresses.Delete(address); err != nil {
			return fmt.Errorf("delete stale address from map node_addresses: %w", err)
		}
	}
	settings := d.self
	settings.Overhead = overhead(d.self, d.nodes)
	return errors.Join(d.writeSettings(settings), d.restoreTunnelPolicy(), d.restoreTunnelKeys(), d.restoreBloom(), d.restoreFrontendKeys(),
		d.restoreEndpointPorts(), d.makeOverrideSecret(), d.restoreMigrated())
}

func (d *Dataplane) restoreFrontendKeys() error {
	state := forwarding.NewState()
	if err := d.dumpFrontends(state); err != nil {
		return fmt.Errorf("read map frontends: %w", err)
	}
	for key, frontend := range state.Frontends {
		if int64(frontend.ID) > int64(d.limits.Frontends) {
			continue
		}
		if err := d.writeFrontendKey(key, frontend.ID); err != nil {
			return err
		}
	}
	return nil
}

// Adoption returns the result of Open for the pinned maps.
func (d *Dataplane) Adoption() Adoption { return d.set.adoption }

// Close closes the process's descriptors. Pins remain, and forwarding continues.
func (d *Dataplane) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.set.close()
	if err := errors.Join(d.programs.Close(), d.tracer.Close(), d.maps.Close()); err != nil {
		return fmt.Errorf("close the data plane: %w", err)
	}
	return nil
}

// Remove uninstalls a data plane: it detaches all programs and deletes all pins.
func Remove(pinRoot string) error {
	hooks := attach.Hooks{Directory: filepath.Join(pinRoot, linkDirectory)}
	if err := hooks.DetachOthers(attach.Wanted{}); err != nil {
		return err
	}
	if err := os.RemoveAll(pinRoot); err != nil {
		return fmt.Errorf("remove the pins under %s: %w", pinRoot, err)
	}
	return nil
}

func newSpec(cfg Config) (*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		return nil, fmt.Errorf("read the compiled BPF programs: %w", err)
	}
	for name, size := range cfg.sizes() {
		spec.Maps[name].MaxEntries = size
	}
	for _, name := range []string{bpf.DatapathMapFragments, bpf.DatapathMapOverflowFragments} {
		spec.Maps[name].MaxEntries = lruSize(int(spec.Maps[name].MaxEntries))
	}
	ticks, err := ticksPerSecond()
	if err != nil {
		return nil, err
	}
	variables := map[string]uint32{
		bpf.DatapathVarTicksPerSecond: ticks,
		bpf.DatapathVarDigestMask:     cfg.evictedBuckets() - 1,
		bpf.DatapathVarAffinityMask:   cfg.affinityBuckets() - 1,
		bpf.DatapathVarOverrideMask:   cfg.overrideBuckets() - 1,
		bpf.DatapathVarHalfOpenQuota:  cfg.halfOpenQuota(),
		bpf.DatapathVarHalfOpenMask:   cfg.halfOpenBuckets() - 1,
		bpf.DatapathVarDatagramQuota:  cfg.datagramQuota(),

		bpf.DatapathVarConnectionQuota: cfg.connectionQuota(),

		bpf.DatapathVarServiceProxy: uint32(cfg.ServiceProxy),

		bpf.DatapathVarEstablishedFilterMask: cfg.establishedWords() - 1,
	}
	if cfg.MissesPerVIP != 0 {
		variables[bpf.DatapathVarMissesPerVip] = cfg.MissesPerVIP
		variables[bpf.DatapathVarMissTcpWeight] = 1
	}
	for name, value := range variables {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s of the BPF programs to %d: %w", name, value, err)
		}
	}
	return spec, setHash(spec, cfg.Seed.Constants())
}

// ticksPerSecond returns the kernel's CONFIG_HZ, computed from the resolution of the coarse clock, which
// advances once per tick: the kernel's configuration is not always available.
func ticksPerSecond() (uint32, error) {
	var resolution unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &resolution); err != nil {
		return 0, fmt.Errorf("read the kernel's tick length: %w", err)
	}
	nanoseconds := resolution.Nano()
	if nanoseconds <= 0 || nanoseconds > 1e9 {
		return 0, fmt.Errorf("read the kernel's tick length: implausible %d ns", nanoseconds)
	}
	return uint32((1e9 + nanoseconds/2) / nanoseconds), nil
}
