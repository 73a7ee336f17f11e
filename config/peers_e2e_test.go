// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

func testPeerWarnings(t *testing.T, server *controlplane.Server) {
	admin, told := newWarningClient(t, server)
	peer := func(name string, change func(*millracev1beta1.LBPeerSpec)) *millracev1beta1.LBPeer {
		object := &millracev1beta1.LBPeer{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       millracev1beta1.LBPeerSpec{LocalASN: 64513, PeerASN: 64512},
		}
		change(&object.Spec)
		return object
	}
	at := func(address string) func(*millracev1beta1.LBPeerSpec) {
		return func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Address = address }
	}
	rack := &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "a"}}
	there := []client.Object{
		peer("by-address", at("2001:db8:7::1")),
		peer("by-gateway", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Gateway = "IPv4" }),
		peer("by-range", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Range = "198.51.100.64/28" }),
		peer("of-rack", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Address, spec.NodeSelector = "192.0.2.1", rack }),
		peer("link-local", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Address, spec.Router.Interface = "fe80::1", "eth0" }),
		peer("by-interface", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Interface = "eth2" }),
	}
	defer removeAll(t, admin, there)
	for _, object := range there {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	// The first one also awaits the policy, so that later ones without a warning are conclusive.
	for _, test := range []struct {
		name   string
		change func(*millracev1beta1.LBPeerSpec)
		// field and other appear in the warning; empty: no warning.
		field, other string
	}{
		{"the same address", at("2001:DB8:7:0::1"), "spec.router.address: 2001:DB8:7:0::1", "by-address"},
		{"another address", at("2001:db8:7::2"), "", ""},
		{"an address of a range", at("198.51.100.65"), "", ""},
		{"another port", func(spec *millracev1beta1.LBPeerSpec) {
			spec.Router.Address, spec.PeerPort = "2001:db8:7::1", 1179
		}, "", ""},
		{"the same gateway", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Gateway = "IPv4" }, "spec.router.gateway", "by-gateway"},
		{"the other gateway", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Gateway = "IPv6" }, "", ""},
		{"a part of the range", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Range = "198.51.100.72/29" }, "spec.router.range", "by-range"},
		{"the range and more", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Range = "198.51.100.0/24" }, "spec.router.range", "by-range"},
		{"another range", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Range = "198.51.100.80/28" }, "", ""},
		{"a rack's and all", at("192.0.2.1"), "spec.router.address", "of-rack"},
		{"the same rack", func(spec *millracev1beta1.LBPeerSpec) {
			spec.Router.Address, spec.NodeSelector = "192.0.2.1", rack
		}, "spec.router.address", "of-rack"},
		{"another rack", func(spec *millracev1beta1.LBPeerSpec) {
			spec.Router.Address = "192.0.2.1"
			spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "b"}}
		}, "", ""},
		{"another link", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Address, spec.Router.Interface = "fe80::1", "eth1" }, "", ""},
		{"the router on another link", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Interface = "eth0" }, "", ""},
		{"the router on the same link", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Interface = "eth2" }, "spec.router.interface: eth2", "by-interface"},
		{"the same link", func(spec *millracev1beta1.LBPeerSpec) {
			spec.Router.Address, spec.Router.Interface = "fe80::1", "eth0"
		}, "spec.router.address", "link-local"},
	} {
		eventually(t, test.name, func(ctx context.Context) error {
			told.Take()
			if err := admin.Create(ctx, peer("again", test.change), client.DryRunAll); err != nil {
				return err
			}
			switch text := told.Take(); {
			case test.field == "" && text != "":
				return fmt.Errorf("a warning: %s", text)
			case test.field != "" && text == "":
				return errors.New("no warning")
			case !strings.Contains(text, test.field) || !strings.Contains(text, test.other):
				return fmt.Errorf("no warning about %s and %q: %s", test.field, test.other, text)
			}
			return nil
		})
	}
}

func testRouterColumn(t *testing.T, server *controlplane.Server, admin client.Client) {
	routers := map[string]struct{ router, shown string }{
		"address":   {`{"address":"fe80::1","interface":"eth0"}`, "fe80::1"},
		"gateway":   {`{"gateway":"IPv6"}`, "IPv6"},
		"range":     {`{"range":"198.51.100.0/28","maxPeers":4}`, "198.51.100.0/28"},
		"interface": {`{"interface":"eth0"}`, "eth0"},
	}
	var objects []client.Object
	for name, router := range routers {
		fields := map[string]any{}
		if err := json.Unmarshal([]byte(router.router), &fields); err != nil {
			t.Fatal(err)
		}
		object := objectOf("LBPeer", name, map[string]any{"localASN": int64(64513), "peerASN": int64(64512), "router": fields})
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	defer removeAll(t, admin, objects)
	for name, router := range routers {
		output, err := server.Kubectl(t.Context(), "get", "lbpeer", name, "--no-headers")
		if err != nil {
			t.Fatal(err)
		}
		if columns := strings.Fields(string(output)); len(columns) < 2 || columns[1] != router.shown {
			t.Errorf("kubectl shows %q for %s, want the router %s", output, router.router, router.shown)
		}
	}
}
