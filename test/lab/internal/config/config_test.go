// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

var update = flag.Bool("update", false, "write the golden files")

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

// testLabOf returns the lab with another CNI.
func testLabOf(t *testing.T, cni CNI) Lab {
	t.Helper()
	lab := testLab(t)
	plan, err := topology.NewRouted(2, 2)
	if err != nil {
		t.Fatal(err)
	}
	lab.Topology, lab.CNI = plan, cni
	lab.Programs[cni.Project()] = "/" + cni.Project()
	return lab
}

func TestIPv4Nodes(t *testing.T) {
	lab := testLab(t)
	node := lab.Topology.WithRole(topology.RoleNode)[0]
	for ipv4, want := range map[bool]string{false: "--node-ip=198.51.100.11,2001:db8:0:1::11", true: "--node-ip=198.51.100.11"} {
		lab.IPv4Nodes = ipv4
		spec, _, err := lab.Machine(node)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(spec.Services, func(s machine.Service) bool { return slices.Contains(s.Command, want) }) {
			t.Errorf("IPv4Nodes %t: no service has %s", ipv4, want)
		}
	}
}

// Kubernetes notices failed nodes as it does everywhere where nothing is set.
func TestKubernetesTiming(t *testing.T) {
	for _, test := range []struct {
		grace time.Duration
		sets  bool
	}{{20 * time.Second, true}, {KubernetesTiming, false}} {
		lab := testLab(t)
		lab.NodeGrace = test.grace
		var all strings.Builder
		for _, host := range []topology.Host{lab.Topology.ControlPlane(), lab.Topology.WithRole(topology.RoleNode)[0]} {
			spec, files, err := lab.Machine(host)
			if err != nil {
				t.Fatal(err)
			}
			all.WriteString(machineText(t, spec, files))
		}
		for _, setting := range []string{"--node-monitor-grace-period", "--node-monitor-period", "nodeLeaseDurationSeconds", "nodeStatusUpdateFrequency"} {
			if got := strings.Contains(all.String(), setting); got != test.sets {
				t.Errorf("with %s, %s is set: %t", test.grace, setting, got)
			}
		}
	}
}

// TestMachines compares all machines and their files with golden ones.
func TestMachines(t *testing.T) {
	lab := testLab(t)
	for _, host := range lab.Topology.Hosts {
		t.Run(host.Name, func(t *testing.T) {
			spec, files, err := lab.Machine(host)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, host.Name, machineText(t, spec, files))
		})
	}
}

// TestCNIs compares a node's machine and its files with golden ones, for each CNI, and with
// the other mode of kube-proxy.
func TestCNIs(t *testing.T) {
	for _, cni := range CNIs()[1:] {
		t.Run(string(cni), func(t *testing.T) {
			lab := testLabOf(t, cni)
			lab.ProxyMode = "iptables"
			host, _ := lab.Topology.Host("node1")
			spec, files, err := lab.Machine(host)
			if err != nil {
				t.Fatal(err)
			}
			paths, manifests, err := lab.Manifests()
			if err != nil {
				t.Fatal(err)
			}
			for _, manifest := range manifests {
				if !slices.Contains(paths, manifest.Path) {
					t.Errorf("%s is written and not applied", manifest.Path)
				}
			}
			compare(t, string(cni), machineText(t, spec, append(files, manifests...)))
		})
	}
}

// TestBIRD compares a router that runs BIRD with a golden one.
func TestBIRD(t *testing.T) {
	lab := testLab(t)
	lab.Router = BIRD
	host, _ := lab.Topology.Host("router1")
	spec, files, err := lab.Machine(host)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "router1-bird", machineText(t, spec, files))
}

func machineText(t *testing.T, spec machine.Spec, files []File) string {
	t.Helper()
	encoded, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text := "-- machine --\n" + string(encoded) + "\n"
	for _, file := range files {
		text += "-- " + file.Path + " --\n" + string(file.Content)
	}
	return text
}

func TestParseCNI(t *testing.T) {
	for _, cni := range CNIs() {
		if got, err := ParseCNI(string(cni)); err != nil || got != cni {
			t.Errorf("%s: %q, %v", cni, got, err)
		}
	}
	if _, err := ParseCNI("weave"); err == nil || !strings.Contains(err.Error(), "ptp, flannel") {
		t.Errorf("an unknown CNI: %v", err)
	}
}

func TestParseRouter(t *testing.T) {
	for _, router := range Routers() {
		if got, err := ParseRouter(string(router)); err != nil || got != router {
			t.Errorf("%s: %q, %v", router, got, err)
		}
	}
	if _, err := ParseRouter("quagga"); err == nil || !strings.Contains(err.Error(), "frr, bird") {
		t.Errorf("an unknown router: %v", err)
	}
}

func compare(t *testing.T, name, got string) {
	t.Helper()
	golden := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs: run the test with -update and look at the difference:\n%s", golden, got)
	}
}

func TestFilesAreWellFormed(t *testing.T) {
	lab := testLab(t)
	files, err := lab.Kubeconfigs()
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range lab.Topology.Hosts {
		_, own, err := lab.Machine(host)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, own...)
	}
	for _, file := range files {
		switch filepath.Ext(file.Path) {
		case ".yaml", ".kubeconfig", ".conflist":
			var content map[string]any
			if err := yaml.Unmarshal(file.Content, &content); err != nil || len(content) == 0 {
				t.Errorf("%s: %v", file.Path, err)
			}
		}
	}
}

// TestServices checks that every service can start: those it waits for exist, and
// nobody waits for himself.
func TestServices(t *testing.T) {
	lab := testLab(t)
	for _, host := range lab.Topology.Hosts {
		spec, _, err := lab.Machine(host)
		if err != nil {
			t.Fatal(err)
		}
		var started []string
		for _, service := range spec.Services {
			for _, name := range service.After {
				if !slices.Contains(started, name) {
					t.Errorf("%s: %s comes after %s, which is not listed before it", host.Name, service.Name, name)
				}
			}
			started = append(started, service.Name)
		}
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
				t.Errorf("%s is hidden on nodes and HiddenFolders does not say so", bind.Target)
			}
		}
	}
}

// TestLongestSocket keeps the sockets of FRR, the longest of the lab, below the
// kernel's limit wherever the checkout lies.
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
