// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach"
)

// Uplink is an interface by which client packets come in and replies leave.
type Uplink struct {
	Name  string
	Index int
	// Device is the index of the interface that gets the XDP program: that below a
	// VLAN, whose frames the driver brings in with a tag. Zero means the uplink
	// itself.
	Device int
	// Members are the indexes of the interfaces that Device consists of, where it
	// is a bond. The kernel runs the program on them.
	Members []int
	// Tags are those of the uplink's frames on Device, outermost first, where it is a VLAN.
	Tags []VLANTag
}

func (u *Uplink) device() int {
	if u.Device != 0 {
		return u.Device
	}
	return u.Index
}

// devices are the indexes of the interfaces that bring in the uplink's frames.
func (u *Uplink) devices() []int { return append([]int{u.device()}, u.Members...) }

// Attachment is what Attach achieved on an uplink.
type Attachment struct {
	Interface string
	Index     int
	// Mode is empty where no XDP program of ours is attached.
	Mode attach.Mode
	// Device is the index of the interface that runs the XDP program, and by
	// whose driver the program sends; DeviceName is its name.
	Device     int
	DeviceName string
	// Members are the indexes of those that Device consists of, where it is a bond: frames
	// come in by them.
	Members []int
	// NativeErr is why Mode is Generic, where this process attached it.
	NativeErr error
	// TagsBeside is why XDP may not see the VLAN tags of the uplink's frames, where it is a
	// VLAN. Packets to VIPs in other VLANs of the device are then taken too.
	TagsBeside error
	// NoRedirects is true where the driver sends no frames that came in by another uplink: they go
	// by the kernel.
	NoRedirects bool
	// Err is nil where all programs are attached and current.
	Err error
}

// Attachments is the outcome of the last Attach, by name of the interface.
func (d *Dataplane) Attachments() []Attachment {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.attachments)
}

// Attach brings the programs onto these uplinks and takes them off all others.
// Programs already there, also of a previous process, are replaced without a gap.
// An uplink that fails does not keep others from being attached; the errors are
// joined, each an *UplinkError, and each is also in its Attachment. At most 8
// different MAC addresses are possible.
func (d *Dataplane) Attach(uplinks []Uplink) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	devices, errs := inspectAll(uplinks, d.config.VethTransmit)
	if err := d.addVLANs(uplinks, errs); err != nil {
		return err
	}
	d.showAllTags(uplinks, devices)
	// Previous addresses stay until previous uplinks are detached.
	if err := d.writeSettings(uplinkSettings(d.self, devices, true)); err != nil {
		return err
	}
	if err := d.set.catchUp(); err != nil {
		return fmt.Errorf("copy connections: %w", err)
	}
	d.attachments = d.attachments[:0:0]
	tried := map[int]attach.Result{}
	for i := range uplinks {
		uplink := &uplinks[i]
		attachment := Attachment{
			Interface: uplink.Name, Index: uplink.Index, Err: errs[uplink.Index],
			Device: uplink.device(), DeviceName: devices[uplink.Index].name, Members: uplink.Members,
		}
		if attachment.Err == nil {
			d.attachOne(uplink, &attachment, tried)
		}
		if attachment.Err != nil {
			attachment.Err = &UplinkError{Index: uplink.Index, Interface: uplink.Name, Err: attachment.Err}
		}
		attachment.TagsBeside = settleTags(uplink, devices, attachment.Mode)
		d.attachments = append(d.attachments, attachment)
	}
	slices.SortFunc(d.attachments, func(a, b Attachment) int { return cmp.Compare(a.Interface, b.Interface) })
	d.lossErr = d.countLosses()
	d.joined = d.joined || slices.ContainsFunc(d.attachments, func(a Attachment) bool { return a.Mode != "" })
	err := errors.Join(d.trustEgress(), d.detachOthers(uplinks), d.removeVLANs(uplinks), d.findRedirects(), d.writeUplinks(uplinks, devices),
		d.writeSettings(uplinkSettings(d.self, devices, false)))
	for _, attachment := range d.attachments {
		err = errors.Join(err, attachment.Err)
	}
	if err != nil {
		return err
	}
	// Only now no program writes the previous maps any more.
	if err := d.set.catchUp(); err != nil {
		return fmt.Errorf("copy connections: %w", err)
	}
	if err := d.set.finish(); err != nil {
		return err
	}
	d.attached = true
	return nil
}

// attachOne attaches replies first, so that no request comes in whose reply could
// not be translated. tried are the devices of other uplinks.
func (d *Dataplane) attachOne(uplink *Uplink, a *Attachment, tried map[int]attach.Result) {
	a.Err = d.hooks.Egress(a.Index, d.programs.Egress)
	if a.Err == nil {
		a.Err = d.hooks.Ingress(a.Device, d.programs.HandedOver)
	}
	if a.Err == nil {
		result, done := tried[a.Device]
		if !done {
			result = d.hooks.XDP(a.Device, uplink.Members, d.programs.Ingress)
			tried[a.Device] = result
		}
		a.Mode, a.NativeErr, a.Err = result.Mode, result.NativeErr, result.Err
	}
}

// detachOthers detaches what no uplink has any more, or what an uplink that could
// not be attached as a whole has.
func (d *Dataplane) detachOthers(uplinks []Uplink) error {
	wanted := attach.Wanted{Requests: map[int]bool{}, Replies: map[int]bool{}, Tags: map[int]bool{}}
	for _, a := range d.attachments {
		if a.Mode != "" {
			wanted.Requests[a.Device], wanted.Replies[a.Index] = true, true
		}
	}
	for i := range uplinks {
		if uplink := &uplinks[i]; len(uplink.Tags) > 0 && d.isAttached(uplink.Index) {
			for _, index := range uplink.devices() {
				wanted.Tags[index] = true
			}
		}
	}
	return d.hooks.DetachOthers(wanted)
}

// ProgramsBefore returns, by the name of the uplink, the programs that the kernel runs on its replies
// before ours: see attach.Hooks.
func (d *Dataplane) ProgramsBefore() (attached map[string][]string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	attached = map[string][]string{}
	for i := range d.attachments {
		a := &d.attachments[i]
		if a.Mode == "" {
			continue
		}
		programs, err := d.hooks.ProgramsBefore(a.Index)
		if err != nil {
			return nil, fmt.Errorf("find the programs in front of ours on %s: %w", a.Interface, err)
		}
		if len(programs) > 0 {
			attached[a.Interface] = programs
		}
	}
	return attached, nil
}

// findRedirects asks which drivers take redirected frames. That is after all programs are
// attached, for some take them only then. Without an answer they count as taking them.
func (d *Dataplane) findRedirects() error {
	if d.config.TakesRedirects == nil {
		return nil
	}
	var failed []error
	for i := range d.attachments {
		if a := &d.attachments[i]; a.Mode == attach.Native {
			takes, err := d.config.TakesRedirects(a.Device)
			a.NoRedirects = err == nil && !takes
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// writeUplinks tells the program which interfaces take redirected frames, and which
// are members of a bond.
func (d *Dataplane) writeUplinks(uplinks []Uplink, devices map[int]device) error {
	want, sends := map[uint32]bpf.DatapathUplink{}, map[int]bool{}
	for _, a := range d.attachments {
		if a.Mode != attach.Native || !devices[a.Index].transmits {
			continue
		}
		sends[a.Device] = true
		if !a.NoRedirects {
			want[uint32(a.Device)] = bpf.DatapathUplink{Flags: uint32(bpf.DatapathUplinkFlagUPLINK_TAKES_FRAMES)}
		}
	}
	for i := range uplinks {
		if !sends[uplinks[i].device()] {
			continue
		}
		for _, member := range uplinks[i].Members {
			want[uint32(member)] = bpf.DatapathUplink{Master: uint32(uplinks[i].device())}
		}
	}
	var stale []uint32
	err := readMap(d.maps.Uplinks, func(index uint32, _ bpf.DatapathUplink) {
		if _, wanted := want[index]; !wanted {
			stale = append(stale, index)
		}
	})
	if err != nil {
		return fmt.Errorf("read map uplinks: %w", err)
	}
	for _, index := range stale {
		if err := remove(d.maps.Uplinks, bpf.DatapathMapUplinks, index, index); err != nil {
			return err
		}
	}
	for index, uplink := range want {
		if err := write(d.maps.Uplinks, bpf.DatapathMapUplinks, index, index, uplink); err != nil {
			return err
		}
	}
	return nil
}
