// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

func testLab(t *testing.T) Lab {
	t.Helper()
	plan, err := topology.New(2, 2)
	if err != nil {
		t.Fatal(err)
	}
	return Lab{
		Topology:    plan,
		State:       "/lab",
		Programs:    map[string]string{"kubernetes": "/k8s", "containerd": "/ctrd", "runc": "/runc", "cni": "/cni"},
		NodeGrace:   20 * time.Second,
		Snapshotter: "overlayfs",
		CNI:         PTP,
		ProxyMode:   "nftables",
		Router:      FRR,
		MTU:         1500,
	}
}

func TestParseCNI(t *testing.T) {
	for _, cni := range CNIs() {
		if got, err := ParseCNI(string(cni)); err != nil || got != cni {
			t.Errorf("%s: %q, %v", cni, got, err)
		}
	}
	if _, err := ParseCNI("weave"); err == nil || !strings.Contains(err.Error(), "ptp, flannel") {
		t.Errorf("unknown CNI: %v", err)
	}
}

func TestParseRouter(t *testing.T) {
	for _, router := range Routers() {
		if got, err := ParseRouter(string(router)); err != nil || got != router {
			t.Errorf("%s: %q, %v", router, got, err)
		}
	}
	if _, err := ParseRouter("quagga"); err == nil || !strings.Contains(err.Error(), "frr, bird") {
		t.Errorf("unknown router: %v", err)
	}
}

func TestHiddenFoldersCoverBinds(t *testing.T) {
	lab := testLab(t)
	for _, host := range lab.Topology.WithRole(topology.RoleNode) {
		spec, _, err := lab.Machine(host)
		if err != nil {
			t.Fatal(err)
		}
		for _, bind := range spec.Binds {
			if !slices.Contains(HiddenFolders(), bind.Target) {
				t.Errorf("%s is hidden on nodes, but missing in HiddenFolders", bind.Target)
			}
		}
	}
}

// TestLongestSocket keeps FRR's socket paths, the longest of the lab, below the kernel's limit in any
// checkout.
func TestLongestSocket(t *testing.T) {
	lab := testLab(t)
	lab.State = "/" + strings.Repeat("very-long-name/", 20)
	for _, host := range lab.Topology.WithRole(topology.RoleRouter) {
		spec, _, err := lab.Machine(host)
		if err != nil {
			t.Fatal(err)
		}
		for _, service := range spec.Services {
			if service.Ready == nil {
				continue
			}
			if path, ok := strings.CutPrefix(service.Ready.Dial, "unix "); ok && len(path) > 107 {
				t.Errorf("socket path %q is too long", path)
			}
		}
	}
}
