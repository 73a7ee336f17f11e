// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"errors"
	"strings"
	"testing"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach"
)

func TestInterfaceStatus(t *testing.T) {
	card := dataplane.Attachment{Interface: "eth0", Index: 2, Device: 2, DeviceName: "eth0", Mode: attach.Native}
	with := func(change func(*dataplane.Attachment)) dataplane.Attachment {
		changed := card
		change(&changed)
		return changed
	}
	for name, test := range map[string]struct {
		attachment dataplane.Attachment
		mode       millracev1beta1.XDPMode
		message    string
	}{
		"native": {card, millracev1beta1.XDPNative, ""},
		"generic": {with(func(a *dataplane.Attachment) {
			a.Mode, a.NativeErr = attach.Generic, errors.New("MTU too large")
		}), millracev1beta1.XDPGeneric, "native XDP not possible: MTU too large"},
		"generic mode without an error": {with(func(a *dataplane.Attachment) { a.Mode = attach.Generic }),
			millracev1beta1.XDPGeneric, "a previous agent"},
		"VLAN": {with(func(a *dataplane.Attachment) { a.Interface, a.Index = "eth0.100", 7 }),
			millracev1beta1.XDPNative, "XDP runs on eth0"},
		"no redirects": {with(func(a *dataplane.Attachment) { a.NoRedirects = true }),
			millracev1beta1.XDPNative, "ndo_xdp_xmit"},
		"failed": {with(func(a *dataplane.Attachment) { a.Mode, a.Err = "", errors.New("another program") }),
			millracev1beta1.XDPNone, "another program"},
		"replacement failed": {with(func(a *dataplane.Attachment) { a.Err = errors.New("refused") }),
			millracev1beta1.XDPNone, "refused"},
	} {
		got := interfaceStatus(test.attachment)
		if got.Name != test.attachment.Interface || got.XDPMode != test.mode {
			t.Errorf("%s: interface %+v, want mode %s", name, got, test.mode)
		}
		if !strings.Contains(got.Message, test.message) || (test.message == "") != (got.Message == "") {
			t.Errorf("%s: message %q, want %q", name, got.Message, test.message)
		}
	}
}
