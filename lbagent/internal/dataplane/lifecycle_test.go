// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach/clsact"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func newUplink(t *testing.T, name, kind string) Uplink {
	t.Helper()
	args := []string{"link", "add", name, "type", kind}
	if kind == "veth" {
		args = append(args, "peer", "name", name+"-peer")
	}
	run(t, "ip", args...)
	t.Cleanup(func() {
		if _, err := net.InterfaceByName(name); err == nil {
			run(t, "ip", "link", "delete", name)
		}
	})
	run(t, "ip", "link", "set", name, "up")
	iface, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return Uplink{Name: name, Index: iface.Index}
}

// ways are the attachment types. Without tcx in the kernel, the first falls back to the second.
var ways = map[string]bool{"tcx": false, "clsact": true}

func inBothWays(t *testing.T, test func(t *testing.T, clsact bool)) {
	t.Helper()
	for way, clsact := range ways {
		t.Run(way, func(t *testing.T) { test(t, clsact) })
	}
}

func attached(t *testing.T, uplink Uplink, byFilter bool) (xdp bool, tc int) {
	t.Helper()
	for at, filter := range map[ebpf.AttachType]clsact.Hook{
		ebpf.AttachTCXIngress: {Interface: uplink.Index, Direction: clsact.Ingress, Name: "millrace_ingress"},
		ebpf.AttachTCXEgress:  {Interface: uplink.Index, Direction: clsact.Egress, Name: "millrace_egress"},
	} {
		if byFilter {
			there, err := clsact.Attached(filter)
			if err != nil {
				t.Fatal(err)
			}
			if there {
				tc++
			}
			continue
		}
		result, err := link.QueryPrograms(link.QueryOptions{Target: uplink.Index, Attach: at})
		if errors.Is(err, unix.EINVAL) {
			return attached(t, uplink, true)
		}
		if err != nil {
			t.Fatal(err)
		}
		tc += len(result.Programs)
	}
	// A second XDP program is rejected if one is attached.
	l, err := link.AttachXDP(link.XDPOptions{Program: passProgram(t), Interface: uplink.Index, Flags: link.XDPGenericMode})
	if err == nil {
		l.Close()
	}
	return err != nil, tc
}

func passProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.XDP,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
		License:      "GPL",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func checkAttached(t *testing.T, d *Dataplane, uplink Uplink, want bool) {
	t.Helper()
	wantTC := map[bool]int{true: 2}[want]
	if xdp, tc := attached(t, uplink, d.hooks.Clsact); xdp != want || tc != wantTC {
		t.Errorf("%s: XDP attached: %v, %d TC programs in the stack; want %v, %d", uplink.Name, xdp, tc, want, wantTC)
	}
}

func linkPins(t *testing.T, d *Dataplane) int {
	t.Helper()
	pins, err := attach.Pins(d.hooks.Directory)
	if err != nil {
		t.Fatal(err)
	}
	return len(pins)
}

func TestAttachReconciles(t *testing.T) { inBothWays(t, testAttachReconciles) }

func testAttachReconciles(t *testing.T, clsact bool) {
	cfg := smallConfig(mountBPF(t))
	cfg.Clsact = clsact
	d := openDataplane(t, cfg)
	first, second, bridge := newUplink(t, "first", "veth"), newUplink(t, "second", "veth"), newUplink(t, "bridged", "bridge")
	steps := []struct {
		name    string
		uplinks []Uplink
		want    []Attachment
	}{
		{"one", []Uplink{first}, []Attachment{{Interface: "first", Index: first.Index, Mode: attach.Native}}},
		{"again", []Uplink{first}, []Attachment{{Interface: "first", Index: first.Index, Mode: attach.Native}}},
		{"two more", []Uplink{second, first, bridge}, []Attachment{
			{Interface: "bridged", Index: bridge.Index, Mode: attach.Generic},
			{Interface: "first", Index: first.Index, Mode: attach.Native},
			{Interface: "second", Index: second.Index, Mode: attach.Native},
		}},
		{"others", []Uplink{bridge, second}, []Attachment{
			{Interface: "bridged", Index: bridge.Index, Mode: attach.Generic},
			{Interface: "second", Index: second.Index, Mode: attach.Native},
		}},
		{"none", nil, nil},
	}
	for _, step := range steps {
		if err := d.Attach(step.uplinks); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		got := d.Attachments()
		for i := range got {
			if step.name == "two more" && (got[i].Mode == attach.Generic) != (got[i].NativeErr != nil) {
				t.Errorf("%s: %s: mode %s, native error %v", step.name, got[i].Interface, got[i].Mode, got[i].NativeErr)
			}
			if got[i].Device != got[i].Index || got[i].DeviceName != got[i].Interface {
				t.Errorf("%s: %s: device %s, %d, want the interface itself", step.name, got[i].Interface, got[i].DeviceName, got[i].Device)
			}
			got[i].Device, got[i].DeviceName, got[i].NativeErr = 0, "", nil
		}
		if len(got)+len(step.want) > 0 && !reflect.DeepEqual(got, step.want) {
			t.Errorf("%s: %+v, want %+v", step.name, got, step.want)
		}
		if pins := linkPins(t, d); pins != 3*len(step.want) {
			t.Errorf("%s: %d pinned links, want %d", step.name, pins, 3*len(step.want))
		}
		for _, uplink := range []Uplink{first, second, bridge} {
			wanted := false
			for _, a := range step.want {
				wanted = wanted || a.Index == uplink.Index
			}
			checkAttached(t, d, uplink, wanted)
		}
	}
}

// A failing uplink does not prevent attachment to another.
func TestAttachPartly(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	good, taken := newUplink(t, "good", "veth"), newUplink(t, "taken", "veth")
	for _, mode := range []link.XDPAttachFlags{link.XDPDriverMode, link.XDPGenericMode} {
		foreign, err := link.AttachXDP(link.XDPOptions{Program: passProgram(t), Interface: taken.Index, Flags: mode})
		if err != nil {
			t.Fatal(err)
		}
		err = d.Attach([]Uplink{taken, {Name: "lo", Index: 1}, {Name: "missing", Index: 4242}, good})
		if !errors.Is(err, attach.ErrForeignProgram) {
			t.Errorf("error %v, want %v", err, attach.ErrForeignProgram)
		}
		got := d.Attachments()
		if len(got) != 4 || got[0].Err != nil || got[0].Mode != attach.Native {
			t.Errorf("attachments %+v, want a native first one", got)
		}
		for _, a := range got[1:] {
			if a.Err == nil || a.Mode != "" {
				t.Errorf("%s: mode %q, want an error", a.Interface, a.Mode)
			}
		}
		checkAttached(t, d, good, true)
		if xdp, tc := attached(t, taken, false); !xdp || tc != 0 {
			t.Errorf("%s: XDP attached: %v, %d TC programs in the stack; want only the foreign XDP program", taken.Name, xdp, tc)
		}
		if err := foreign.Close(); err != nil {
			t.Fatal(err)
		}
		if err := d.Attach([]Uplink{taken, good}); err != nil {
			t.Errorf("after the removal of the foreign program: %v", err)
		}
		if err := d.Attach(nil); err != nil {
			t.Fatal(err)
		}
	}
}

// The pins of a deleted interface are removed, and its index may be reused.
func TestAttachAfterInterfaceGone(t *testing.T) {
	inBothWays(t, func(t *testing.T, clsact bool) {
		cfg := smallConfig(mountBPF(t))
		cfg.Clsact = clsact
		d := openDataplane(t, cfg)
		uplink := newUplink(t, "gone", "veth")
		if err := d.Attach([]Uplink{uplink}); err != nil {
			t.Fatal(err)
		}
		run(t, "ip", "link", "delete", "gone")
		run(t, "ip", "link", "add", "again", "index", strconv.Itoa(uplink.Index), "type", "bridge")
		t.Cleanup(func() { run(t, "ip", "link", "delete", "again") })
		uplink.Name = "again"
		other := openDataplane(t, cfg)
		if err := other.Attach([]Uplink{uplink}); err != nil {
			t.Fatal(err)
		}
		checkAttached(t, other, uplink, true)
		if err := other.Attach(nil); err != nil {
			t.Fatal(err)
		}
		checkAttached(t, other, uplink, false)
		if pins := linkPins(t, other); pins != 0 {
			t.Errorf("%d pinned links, want 0", pins)
		}
	})
}

func TestRemove(t *testing.T) {
	inBothWays(t, func(t *testing.T, clsact bool) {
		cfg := smallConfig(mountBPF(t))
		cfg.Clsact = clsact
		d := openDataplane(t, cfg)
		uplink := newUplink(t, "removed", "veth")
		if err := d.Attach([]Uplink{uplink}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := Remove(cfg.PinRoot); err != nil {
				t.Fatal(err)
			}
		}
		checkAttached(t, d, uplink, false)
		if _, err := os.Stat(cfg.PinRoot); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the pin directory still exists: %v", err)
		}
	})
}

// Content that does not fit is an error without any change.
func TestShrinkRefused(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	frontend := forwarding.Frontend{ID: 60, Table: 8}
	table := make([]forwarding.Row, forwarding.Rows)
	all := make([]uint32, forwarding.Rows)
	for i := range table {
		table[i].Primary, all[i] = 1, uint32(i)
	}
	apply(t, d,
		forwarding.PutVIP{Address: vip4}, forwarding.PutVIP{Address: vip6},
		forwarding.PutEndpoint{ID: 200, Endpoint: forwarding.Endpoint{Address: vip4, Port: 1}},
		forwarding.PutRows{Slot: 8, Changed: all, Rows: table},
		forwarding.PutRows{Slot: 7, Changed: all, Rows: table},
		forwarding.PutFrontend{Key: forwarding.FrontendKey{VIP: vip4, Port: 80, Protocol: 6}, Frontend: frontend},
		forwarding.PutFrontend{Key: forwarding.FrontendKey{VIP: vip4, Port: 81, Protocol: 6}, Frontend: forwarding.Frontend{ID: 1, Table: 7}})
	want, err := d.Dump()
	if err != nil {
		t.Fatal(err)
	}
	if want.NodeTables[7] != want.NodeTables[8] {
		t.Error("equal tables are not shared after reading")
	}
	for name, shrink := range map[string]func(*Config){
		"VIPs":      func(c *Config) { c.Limits.VIPs = 1 },
		"endpoints": func(c *Config) { c.Limits.Endpoints = 100 },
		"tables":    func(c *Config) { c.Limits.NodeTables = 7 },
	} {
		t.Run(name, func(t *testing.T) {
			small := cfg
			shrink(&small)
			if _, err := Open(small); !errors.Is(err, ErrFull) {
				t.Errorf("error %v, want %v", err, ErrFull)
			}
			again := openDataplane(t, cfg)
			if kind := again.Adoption().Kind; kind != Adopted {
				t.Errorf("second restart: adoption %s, want %s", kind, Adopted)
			}
			if got, err := again.Dump(); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("state = %+v, %v; want %+v", got, err, want)
			}
		})
	}
}

// An interrupted exchange of the map directories is completed or reverted by the next start.
func TestInterruptedStart(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	apply(t, d, forwarding.PutVIP{Address: vip4})
	directory := func(name string) string { return filepath.Join(cfg.PinRoot, name) }
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(directory(from), directory(to)); err != nil {
			t.Fatal(err)
		}
	}
	create := func(name string) {
		t.Helper()
		if err := os.Mkdir(directory(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, interrupt := range map[string]func(){
		"next directory begun":          func() { create(nextMapDirectory) },
		"previous directory moved away": func() { create(nextMapDirectory); move(mapDirectory, previousMapDirectory) },
		"previous directory left":       func() { create(previousMapDirectory) },
	} {
		t.Run(name, func(t *testing.T) {
			interrupt()
			again := openDataplane(t, cfg)
			state, err := again.Dump()
			if err != nil || again.Adoption().Kind != Adopted {
				t.Fatalf("%+v, %v; want %s", again.Adoption(), err, Adopted)
			}
			if _, found := state.VIPs[vip4]; !found {
				t.Error("the VIP was lost")
			}
			entries, err := os.ReadDir(cfg.PinRoot)
			if err != nil || len(entries) != 2 {
				t.Errorf("directories %v, %v; want maps and links", entries, err)
			}
		})
	}
}

// Three capabilities suffice for the first start and later ones.
func TestCapabilities(t *testing.T) { inBothWays(t, testCapabilities) }

func testCapabilities(t *testing.T, clsact bool) {
	cfg := smallConfig(mountBPF(t))
	cfg.Clsact = clsact
	uplink := newUplink(t, "modest", "veth")
	done := make(chan error)
	go func() {
		// The thread terminates with its reduced capabilities.
		runtime.LockOSThread()
		done <- errors.Join(keepCapabilities(unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON), useAll(cfg, uplink))
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func keepCapabilities(keep ...int) error {
	var mask uint64
	for _, c := range keep {
		mask |= 1 << c
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{
		{Effective: uint32(mask), Permitted: uint32(mask)},
		{Effective: uint32(mask >> 32), Permitted: uint32(mask >> 32)},
	}
	return unix.Capset(&header, &data[0])
}

func useAll(cfg Config, uplink Uplink) error {
	larger := cfg
	larger.Connections *= 2
	for _, cfg := range []Config{cfg, cfg, larger} {
		d, err := Open(cfg)
		if err != nil {
			return err
		}
		ops := []forwarding.Op{
			forwarding.SetSelf{Self: forwarding.Self{ID: 1, IPv4: netip.MustParseAddr("198.51.100.1")}},
			forwarding.PutVIP{Address: vip4},
			forwarding.PutEndpointTable{Slot: 1, Table: &forwarding.EndpointTable{}},
			forwarding.PutFrontend{Key: forwarding.FrontendKey{VIP: vip4, Port: 80, Protocol: 6}, Frontend: forwarding.Frontend{ID: 1, Endpoints: 1}},
		}
		_, dumpErr := d.Dump()
		_, countersErr := d.Counters()
		_, connectionsErr := d.Connections()
		err = errors.Join(applyAll(d, ops), d.Attach([]Uplink{uplink}), dumpErr, countersErr, connectionsErr, d.Close())
		if err != nil {
			return err
		}
	}
	return Remove(cfg.PinRoot)
}

func TestConfigValidation(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no pin root":          func(c *Config) { c.PinRoot = "" },
		"no frontends":         func(c *Config) { c.Limits.Frontends = 0 },
		"too many tables":      func(c *Config) { c.Limits.NodeTables = 1 << 20 },
		"negative endpoints":   func(c *Config) { c.Limits.Endpoints = -1 },
		"no connections":       func(c *Config) { c.Connections = 0 },
		"negative half-open":   func(c *Config) { c.HalfOpen = -1 },
		"no bpf file system":   func(c *Config) { c.PinRoot = t.TempDir() },
		"pin root is a file":   func(c *Config) { c.PinRoot = "/proc/self/exe" },
		"no endpoint tables":   func(c *Config) { c.Limits.EndpointTables = 0 },
		"no capacity for VIPs": func(c *Config) { c.Limits.VIPs = 0 },
		"too many connections": func(c *Config) { c.Connections = 1 << 40 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := smallConfig("/nowhere")
			change(&cfg)
			if d, err := Open(cfg); err == nil {
				d.Close()
				t.Error("no error for an invalid seed")
			} else {
				t.Log(err)
			}
		})
	}
}
