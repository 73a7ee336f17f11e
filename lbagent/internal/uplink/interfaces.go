// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"fmt"
	"strings"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach"
)

// Names returns the names of interfaces.
func Names(interfaces []millracev1beta1.InterfaceStatus) []string {
	list := make([]string, 0, len(interfaces))
	for _, uplink := range interfaces {
		list = append(list, uplink.Name)
	}
	return list
}

// Attached returns the names of the uplinks with the programs.
func (u *Uplinks) Attached() (names []string) {
	for _, attachment := range u.plane.Attachments() {
		if attachment.Err == nil && attachment.Mode != "" {
			names = append(names, attachment.Interface)
		}
	}
	return names
}

// Devices maps the interfaces that the programs can send on to the interfaces that they receive frames
// on.
func (u *Uplinks) Devices() map[int][]int {
	devices := map[int][]int{}
	attachments := u.plane.Attachments()
	for i := range attachments {
		if a := &attachments[i]; a.Mode != "" {
			devices[a.Device] = append([]int{a.Device}, a.Members...)
		}
	}
	return devices
}

func interfaces(attachments []dataplane.Attachment) []millracev1beta1.InterfaceStatus {
	statuses := make([]millracev1beta1.InterfaceStatus, 0, len(attachments))
	for _, attachment := range attachments {
		statuses = append(statuses, interfaceStatus(attachment))
	}
	return statuses
}

func interfaceStatus(attachment dataplane.Attachment) millracev1beta1.InterfaceStatus {
	status := millracev1beta1.InterfaceStatus{Name: attachment.Interface, XDPMode: millracev1beta1.XDPNone}
	var messages []string
	switch {
	case attachment.Err != nil:
		return millracev1beta1.InterfaceStatus{
			Name: attachment.Interface, XDPMode: millracev1beta1.XDPNone, Message: attachment.Err.Error(),
		}
	case attachment.Mode == attach.Native:
		status.XDPMode = millracev1beta1.XDPNative
	case attachment.Mode == attach.Generic:
		status.XDPMode = millracev1beta1.XDPGeneric
		reason := "it was not when a previous agent attached the programs"
		if attachment.NativeErr != nil {
			reason = attachment.NativeErr.Error()
		}
		messages = append(messages, "native XDP not possible: "+reason)
	}
	if attachment.Device != attachment.Index {
		messages = append(messages, "XDP runs on "+attachment.DeviceName)
	}
	if attachment.NoRedirects {
		messages = append(messages, "frames from other uplinks are forwarded by the kernel, because the driver lacks ndo_xdp_xmit")
	}
	status.Message = strings.Join(messages, "; ")
	return status
}

func describeInterfaces(interfaces []millracev1beta1.InterfaceStatus) []string {
	texts := make([]string, 0, len(interfaces))
	for _, status := range interfaces {
		text := fmt.Sprintf("%s (%s)", status.Name, status.XDPMode)
		if status.Message != "" {
			text += ": " + status.Message
		}
		texts = append(texts, text)
	}
	return texts
}
