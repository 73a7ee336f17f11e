// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package config

import (
	"encoding/json"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// testRouterColumn has kubectl show where routers are, by the names of now and by the former ones.
func testRouterColumn(t *testing.T, server *controlplane.Server, admin client.Client) {
	routers := map[string]struct{ spec, shown string }{
		"address":      {`{"router":{"address":"fe80::1","interface":"eth0"}}`, "fe80::1"},
		"gateway":      {`{"router":{"gateway":"IPv6"}}`, "IPv6"},
		"range":        {`{"router":{"range":"198.51.100.0/28","maxPeers":4}}`, "198.51.100.0/28"},
		"peer-address": {`{"peerAddress":"192.0.2.1"}`, "192.0.2.1"},
		"peer-gateway": {`{"peerGateway":"IPv4"}`, "IPv4"},
		"peer-range":   {`{"peerRange":"2001:db8::/64","maxPeers":4}`, "2001:db8::/64"},
	}
	var objects []client.Object
	for name, router := range routers {
		object := objectOf("LBPeer", name, map[string]any{"localASN": 64513, "peerASN": 64512})
		fields := map[string]any{}
		if err := json.Unmarshal([]byte(router.spec), &fields); err != nil {
			t.Fatal(err)
		}
		for key, value := range fields {
			object.Object["spec"].(map[string]any)[key] = value
		}
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
			t.Errorf("kubectl shows %q of {%s}, want the router %s", output, router.spec, router.shown)
		}
	}
}
