// SPDX-License-Identifier: Apache-2.0

// Package dataplane owns the BPF programs and maps of a node. It loads and
// attaches the programs, and keeps maps and links pinned so that forwarding
// outlives the process. It writes and reads the maps in terms of package
// forwarding. It needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and Linux 6.1.
//
// Below Config.PinRoot are the directories maps, one pin for each map, and links,
// one entry for each attached program.
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

// Config says where the pins are and how large the maps.
type Config struct {
	// PinRoot is a directory of a mounted bpf file system, such as
	// /sys/fs/bpf/millrace. It is created where missing.
	PinRoot string
	// Limits are the sizes of the forwarding maps. Ids and slots run from 1 to
	// the limit. All must be positive.
	Limits forwarding.Limits
	// Connections is how many established TCP connections each address family's
	// table holds; the longest unused one makes room. The memory, about 500 bytes
	// for each over both families and directions, is taken at once. Three times as
	// many at least are remembered so far that an evicted one comes back as it was.
	Connections int
	// Datagrams is the same for UDP flows that are answered. Zero means a quarter
	// of Connections, at least 4,096.
	Datagrams int
	// Affinities is the number of clients of Services with session affinity whose endpoint is
	// remembered, over TCP and as many over other protocols. Zero means an eighth of Connections,
	// at least 4,096.
	Affinities int
	// Exceptions is for how many flows of each address family there is room that are
	// sent to another node than their row says, at 128 bytes. Zero means as many as
	// Connections.
	Exceptions int
	// HalfOpen is how many flows that are not established each table holds.
	// Zero means an eighth of Connections, between 4,096 and 262,144.
	HalfOpen int
	// UnknownPerVIP is for how many packets of one VIP and protocol in a second other nodes
	// may be asked in vain. Zero means the programs' defaults, which are less for TCP
	// (bpf/src/second_chance_limit.h).
	UnknownPerVIP uint32
	// Seed is that of the hash of flows, the same on all nodes. Maps that were filled by
	// another one are built again.
	Seed flowhash.Seed
	// ServiceProxy is what the node's service proxy has of the VIPs' connections.
	ServiceProxy ServiceProxy
	// Clsact attaches by filters of clsact what tcx is for, as kernels before
	// 6.6 need it anyway. Programs that are attached already stay as they are.
	Clsact bool
	// VethTransmit lets the program send by XDP on veth uplinks, too. The other end of each must
	// run an XDP program in native mode: to others, veth does not deliver such frames.
	VethTransmit bool
	// TakesRedirects reports whether the driver of an interface, by its index, sends frames that
	// are redirected to it. Nil: nobody knows, and all count as sending them.
	TakesRedirects func(device int) (bool, error)
}

// Dataplane is the loaded data plane of this node. Its methods may be called
// concurrently, except that nothing may run beside or after Close.
type Dataplane struct {
	limits      forwarding.Limits
	connections int
	// hash has the constants of the programs.
	hash  flowhash.Constants
	hooks attach.Hooks

	config   Config
	set      *mapSet
	maps     bpf.DatapathMaps
	programs bpf.DatapathPrograms

	// taken are the frontends of which new connections are not the service proxy's.
	taken map[forwarding.FrontendID]bool
	// mu serialises what writes.
	mu          sync.Mutex
	attachments []Attachment
	// joined is true once this node has taken packets: rows that are written
	// before are older on the other nodes.
	joined bool
	// lossErr is why losses are not counted.
	lossErr       error
	lossesCounted bool
	lossNames     lossNames
	// self is what the settings map holds.
	self bpf.DatapathSelf
	// nodes and hops are what the nodes map holds; hops may also have ones of nodes
	// that are not known yet.
	nodes map[forwarding.NodeID]bpf.DatapathNode
	hops  map[forwarding.NodeID]forwarding.Hop
	// down are nodes that SetDown named.
	down map[forwarding.NodeID]bool
	// unfinished are the nodes of which a change has failed half way, with all
	// addresses that may be accepted as theirs.
	unfinished map[forwarding.NodeID][]bpf.DatapathAddress
	// trust and ingress are what the maps tunnel_trust and node_uplinks hold.
	trust   bpf.DatapathTrust
	ingress map[forwarding.NodeID]bpf.DatapathIngressInterfaces
	// tunnelKeys are what the map tunnel_keys holds, by number.
	tunnelKeys [forwarding.MaxTunnelKey + 1]bpf.DatapathTunnelKey
	// bloom is what the vip_filter map holds.
	bloom *vipBloom

	// swept is what the last sweep of the exceptions left; rowsWritten is true if rows were
	// written since it began.
	swept       sweepState
	rowsWritten bool
	// rowUpdates has room for those of a table.
	rowUpdates []byte
	// attached is true once no program of a previous process is.
	attached bool

	// noting allows one sweep of the connections at a time. noted are the bits of the filter
	// after the last one.
	noting sync.Mutex
	noted  int

	// tracing allows one trace at a time: they share the map of the record.
	tracing sync.Mutex
	// tracer is nil until the first one.
	tracer *ebpf.Program
}

// Open loads the programs over the pinned maps where there are any, else over
// new ones. Programs that are attached keep forwarding until Attach replaces
// them. Maps of another size or layout are copied; where that cannot be, all are built again.
// Adoption reports which of these happened.
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
		limits:      cfg.Limits,
		connections: cfg.Connections,
		hash:        cfg.Seed.Constants(),
		hooks:       attach.Hooks{Directory: linkDir, Clsact: cfg.Clsact},
		config:      cfg,
		unfinished:  map[forwarding.NodeID][]bpf.DatapathAddress{},
		set:         set,
		joined:      set.adoption.Kind != Created && set.adoption.Kind != Rebuilt,
	}
	if err := d.load(spec); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// load loads the programs, makes the maps the pinned ones and reads what the
// Dataplane caches of them.
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

// restore reads the node's settings, the nodes and the VIPs, and drops addresses
// that belong to no node, as an interrupted change leaves them.
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
	return errors.Join(d.writeSettings(settings), d.restoreTrust(), d.restoreTunnelKeys(), d.restoreBloom(), d.restoreFrontendKeys(),
		d.restoreEndpointPorts(), d.makeExceptionSecret(), d.restoreTaken())
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

// Adoption tells what Open found under Config.PinRoot.
func (d *Dataplane) Adoption() Adoption { return d.set.adoption }

// Close closes the process's descriptors. Pins stay, and forwarding goes on.
func (d *Dataplane) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.set.close()
	if err := errors.Join(d.programs.Close(), d.tracer.Close(), d.maps.Close()); err != nil {
		return fmt.Errorf("close the data plane: %w", err)
	}
	return nil
}

// Remove detaches all programs and deletes all pins of a data plane, so that
// nothing of it is left. It is what an uninstall calls.
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

// newSpec is the compiled programs with the sizes and constants of this node.
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
		bpf.DatapathVarEvictedMask:    cfg.evictedBuckets() - 1,
		bpf.DatapathVarAffinityMask:   cfg.affinityBuckets() - 1,
		bpf.DatapathVarExceptionMask:  cfg.exceptionBuckets() - 1,
		bpf.DatapathVarHalfOpenQuota:  cfg.halfOpenQuota(),
		bpf.DatapathVarHalfOpenMask:   cfg.halfOpenBuckets() - 1,
		bpf.DatapathVarDatagramQuota:  cfg.datagramQuota(),

		bpf.DatapathVarConnectionQuota: cfg.connectionQuota(),

		bpf.DatapathVarServiceProxy: uint32(cfg.ServiceProxy),

		bpf.DatapathVarEstablishedFilterMask: cfg.establishedWords() - 1,
	}
	if cfg.UnknownPerVIP != 0 {
		variables[bpf.DatapathVarUnknownPerVip] = cfg.UnknownPerVIP
		variables[bpf.DatapathVarUnknownTcpWeight] = 1
	}
	for name, value := range variables {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s of the BPF programs to %d: %w", name, value, err)
		}
	}
	return spec, setHash(spec, cfg.Seed.Constants())
}

// ticksPerSecond is the kernel's CONFIG_HZ: the coarse clock advances once a
// tick, and its resolution is available where the kernel's configuration is not.
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
