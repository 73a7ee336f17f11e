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

// Uplink is an interface that receives client packets and sends replies.
type Uplink struct {
	Name  string
	Index int
	// Device is the index of the interface for the XDP program: the one below a VLAN, whose driver receives
	// tagged frames. Zero means the uplink itself.
	Device int
	// Members are the indexes of the members of Device if it is a bond. The kernel runs the program on them.
	Members []int
	// Tags are the VLAN tags of the uplink's frames on Device, outermost first.
	Tags []VLANTag
}

func (u *Uplink) device() int {
	if u.Device != 0 {
		return u.Device
	}
	return u.Index
}

func (u *Uplink) devices() []int { return append([]int{u.device()}, u.Members...) }

// Attachment is the result of Attach for an uplink.
type Attachment struct {
	Interface string
	Index     int
	// Mode is empty if our XDP program is not attached.
	Mode attach.Mode
	// Device is the index of the interface whose driver runs the XDP program and transmits its frames.
	Device     int
	DeviceName string
	// Members are the indexes of the members of Device if it is a bond.
	Members []int
	// NativeErr is the reason for Generic mode if this process attached the program.
	NativeErr error
	// TagsBeside is the reason why XDP may not see the VLAN tags of the uplink's frames, or nil. Packets to
	// VIPs in other VLANs of the device are then forwarded, too.
	TagsBeside error
	// NoRedirects is true if the driver does not transmit redirected frames, which the kernel then forwards.
	NoRedirects bool
	// Err is nil if all programs are attached and current.
	Err error
}

// Attachments returns the result of the last Attach, sorted by interface name.
func (d *Dataplane) Attachments() []Attachment {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.attachments)
}

// Attach attaches the programs to these uplinks, detaches them from all others, and replaces attached ones
// without a gap. A failure affects one uplink only; the errors are joined, each an *UplinkError that is also
// in its Attachment. Uplinks may have at most 8 different MAC addresses.
func (d *Dataplane) Attach(uplinks []Uplink) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	devices, errs := inspectAll(uplinks, d.config.VethTransmit)
	if err := d.addVLANs(uplinks, errs); err != nil {
		return err
	}
	d.showAllTags(uplinks, devices)
	// Previous MAC addresses stay until previous uplinks are detached.
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
	d.transmitDropsErr = d.countTransmitDrops()
	d.everAttached = d.everAttached || slices.ContainsFunc(d.attachments, func(a Attachment) bool { return a.Mode != "" })
	err := errors.Join(d.enableEgressCheck(), d.detachOthers(uplinks), d.removeVLANs(uplinks), d.findRedirects(), d.writeUplinks(uplinks, devices),
		d.writeSettings(uplinkSettings(d.self, devices, false)))
	for _, attachment := range d.attachments {
		err = errors.Join(err, attachment.Err)
	}
	if err != nil {
		return err
	}
	// Programs write to the previous maps until here.
	if err := d.set.catchUp(); err != nil {
		return fmt.Errorf("copy connections: %w", err)
	}
	if err := d.set.finish(); err != nil {
		return err
	}
	d.attached = true
	return nil
}

// attachOne attaches egress first, so that every reply is translated. tried are devices of other uplinks.
func (d *Dataplane) attachOne(uplink *Uplink, a *Attachment, tried map[int]attach.Result) {
	a.Err = d.hooks.Egress(a.Index, d.programs.Egress)
	if a.Err == nil {
		a.Err = d.hooks.Ingress(a.Device, d.programs.RedirectNeigh)
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

// ProgramsBefore returns, by uplink name, the egress programs that run before ours: see attach.Hooks.
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

// findRedirects determines which drivers transmit redirected frames. It follows Attach, because some transmit
// them only with a program attached. On an error they count as transmitting.
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

func (d *Dataplane) writeUplinks(uplinks []Uplink, devices map[int]device) error {
	want, sends := map[uint32]bpf.DatapathUplink{}, map[int]bool{}
	for _, a := range d.attachments {
		if a.Mode != attach.Native || !devices[a.Index].transmits {
			continue
		}
		sends[a.Device] = true
		if !a.NoRedirects {
			want[uint32(a.Device)] = bpf.DatapathUplink{Flags: uint32(bpf.DatapathUplinkFlagUPLINK_ACCEPTS_REDIRECTS)}
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
