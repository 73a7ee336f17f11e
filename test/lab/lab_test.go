// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

// These tests run the built lab as root. There can be one lab on a machine: they
// fail when one is up.
package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const workload = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo, namespace: default}
spec:
  replicas: 6
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: echo}}
      containers:
      - name: echo
        image: millrace.test/echo:dev
        args: [serve]
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
        resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 500m, memory: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: host, namespace: default}
spec:
  hostNetwork: true
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers:
  - {name: echo, image: millrace.test/echo:dev, args: [serve, --port, "9090"]}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: default}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: echo}
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: udp, port: 80, targetPort: 8080, protocol: UDP}
`

func TestLab(t *testing.T) {
	lab := newTester(t)
	otherNamespace(t, "beside-before")
	before := lookAtMachine(t)
	t.Run("without a lab", func(t *testing.T) {
		lab := &tester{t, lab.program, lab.state}
		for _, args := range [][]string{{"hosts"}, {"exec", "node1", "--", "true"}, {"kubectl", "version"}, {"node", "stop", "node1"}} {
			lab.refused(1, "bin/lab up", args...)
		}
		if got := lab.run("down"); got != "there was no lab\n" {
			t.Errorf("output of down = %q", got)
		}
	})
	lab.cleanUp()
	start := time.Now()
	t.Log(lab.run("up", "--nodes", "3", "--routers", "2"))
	t.Logf("up took %s, including filling the cache", time.Since(start).Round(time.Second))
	inside := processesOf(t, lab)
	if len(inside) < 20 {
		t.Errorf("only %d processes run in the lab", len(inside))
	}

	for _, test := range []struct {
		name string
		run  func(*tester)
	}{
		{"second up", func(t *tester) { t.refused(1, "bin/lab down", "up") }},
		{"exit codes", testExitCodes},
		{"routes", testRoutes},
		{"pods", testPods},
		{"images", testImages},
		{"link", testLink},
		{"node stop and start", testNode},
		{"kubectl's cache", testKubectlCache},
		{"sysctls", func(t *tester) { before.compareSysctls(t.T, lookAtMachine(t.T)) }},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(&tester{t, lab.program, lab.state}) })
	}

	inside = append(inside, processesOf(t, lab)...)
	otherNamespace(t, "beside-during")
	lab.run("down")
	lab.strays()
	before.compare(t, lookAtMachine(t))
	for _, process := range inside {
		if process.alive() {
			t.Errorf("process %d of the lab is still running: %s", process.pid, process.command)
		}
	}
	if _, err := os.Stat(lab.state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the lab was not removed: %v", err)
	}
}

func testExitCodes(t *tester) {
	for command, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 128 + 9} {
		for _, host := range []string{"client", "router1", "cp", "node1"} {
			if output, code := t.try("", "exec", host, "--", "sh", "-c", command); code != want {
				t.Errorf("%s on %s: exit code %d, want %d: %s", command, host, code, want, output)
			}
		}
	}
	if _, code := t.try("", "exec", "client", "--", "no-such-program"); code != 127 {
		t.Errorf("missing program: exit code %d, want 127", code)
	}
	if output, code := t.try("words\n", "exec", "node1", "--", "cat"); code != 0 || output != "words\n" {
		t.Errorf("standard input received as %q, exit code %d", output, code)
	}
	t.refused(1, "the lab has client, router1", "exec", "node9", "--", "true")
	if _, code := t.try("", "kubectl", "get", "pod", "absent"); code != 1 {
		t.Errorf("kubectl: exit code %d, want 1", code)
	}
	for _, args := range [][]string{{}, {"absent"}, {"up", "--absent"}, {"up", "--nodes", "0"}, {"node", "stop"}, {"exec", "client"}} {
		if output, code := t.try("", args...); code != 2 {
			t.Errorf("lab %v: exit code %d, want 2: %s", args, code, output)
		}
	}
}

func testRoutes(t *tester) {
	for host, want := range map[string]int{"client": 2, "node1": 2, "router1": 0} {
		for _, family := range []string{"-4", "-6"} {
			output := t.run("exec", host, "--", "ip", family, "route", "show", "default")
			if got := strings.Count(output, "via "); got != want {
				t.Errorf("%s: %d default routes of family %s, want %d: %s", host, got, family, want, output)
			}
		}
	}
	// Pod addresses must not be reachable through a router.
	for _, address := range []string{"198.18.1.1", "198.19.0.1", "2001:db8:100:1::1"} {
		if output, code := t.try("", "exec", "router1", "--", "ip", "route", "get", address); code == 0 {
			t.Errorf("router1 has a route to %s: %s", address, output)
		}
	}
	for _, router := range []string{"router1", "router2"} {
		output := t.run("vtysh", router, "--", "-c", "show running-config")
		for _, want := range []string{"router bgp 64512", "bgp listen range 198.51.100.0/25", "bgp listen range 2001:db8:0:1::/64"} {
			if !strings.Contains(output, want) {
				t.Errorf("%s: configuration does not contain %q:\n%s", router, want, output)
			}
		}
	}
}

type podList struct {
	Items []struct {
		Metadata struct{ Name string }
		Spec     struct{ NodeName string }
		Status   struct {
			PodIPs []struct{ IP string }
		}
	}
}

func (t *tester) pods() podList {
	t.Helper()
	var pods podList
	if err := json.Unmarshal([]byte(t.run("kubectl", "get", "pods", "-l", "app=echo", "-o", "json")), &pods); err != nil {
		t.Fatal(err)
	}
	return pods
}

func testPods(t *tester) {
	if output, code := t.try(workload, "kubectl", "apply", "-f", "-"); code != 0 {
		t.Fatalf("apply: %s", output)
	}
	t.run("kubectl", "rollout", "status", "deployment/echo", "--timeout=60s")
	t.run("kubectl", "wait", "--for=condition=Ready", "pod/host", "--timeout=60s")
	pods := t.pods()
	if len(pods.Items) != 6 {
		t.Fatalf("%d pods, want 6", len(pods.Items))
	}
	nodes := map[string]int{}
	from := pods.Items[0].Metadata.Name
	for _, pod := range pods.Items {
		nodes[pod.Spec.NodeName]++
		if len(pod.Status.PodIPs) != 2 {
			t.Fatalf("addresses of pod %s = %v, want one of each family", pod.Metadata.Name, pod.Status.PodIPs)
		}
		for _, address := range pod.Status.PodIPs {
			host := address.IP
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			for _, source := range []string{from, "host"} {
				t.run("kubectl", "exec", source, "--", "/echo", "load", "--url", "http://"+host+":8080/", "--requests", "1")
			}
		}
	}
	if nodes["node1"] != 2 || nodes["node2"] != 2 || nodes["node3"] != 2 {
		t.Errorf("pods per node: %v", nodes)
	}
	for _, source := range []string{from, "host"} {
		output := t.run("kubectl", "exec", source, "--", "/echo", "api", "--path", "/version")
		if !strings.Contains(output, `"gitVersion": "v1.37.2"`) {
			t.Errorf("version reported by %s: %s", source, output)
		}
	}
	for _, path := range []string{"{.spec.clusterIPs[0]}:80", "[{.spec.clusterIPs[1]}]:80"} {
		address := t.run("kubectl", "get", "service", "echo", "-o", "jsonpath="+path)
		t.run("kubectl", "exec", from, "--", "/echo", "load", "--url", "http://"+address, "--requests", "100", "--keepalive=false")
		t.run("kubectl", "exec", from, "--", "/echo", "udp", "--to", address, "--count", "100")
	}
	if output := t.run("kubectl", "logs", from); !strings.Contains(output, "as pod "+from) {
		t.Errorf("logs of %s: %q", from, output)
	}
}

func testImages(t *tester) {
	archive := filepath.Join(t.TempDir(), "other.tar")
	build := exec.Command("go", "run", "../../hack/mkimage", "--output", archive, "--name", "millrace.test/other:dev",
		"--entrypoint", "/lab", t.program+":/lab")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make image: %v: %s", err, output)
	}
	t.run("image", "load", archive)
	for _, node := range []string{"node1", "node2", "node3"} {
		if output := t.run("exec", node, "--", "ctr", "-n", "k8s.io", "images", "ls", "-q"); !strings.Contains(output, "millrace.test/other:dev") {
			t.Errorf("%s has images %s", node, output)
		}
	}
	t.refused(1, "no such file", "image", "load", "/no-such-archive")
}

// testKubectlCache checks that kubectl's discovery cache belongs to the lab.
func testKubectlCache(t *tester) {
	command := t.command("kubectl", "get", "nodes")
	home := t.TempDir()
	command.Env = append(command.Env, "HOME="+home)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("kubectl: %v: %s", err, output)
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) > 0 {
		t.Errorf("kubectl created %v in the home directory (%v)", entries, err)
	}
	if _, err := os.Stat(filepath.Join(t.state, "kubectl", "discovery")); err != nil {
		t.Errorf("the discovery cache is not in the directory of the lab: %v", err)
	}
}

func testLink(t *tester) {
	const reach = "exec 3<>/dev/tcp/198.51.100.11/10250"
	try := func() int {
		_, code := t.try("", "exec", "cp", "--", "timeout", "1", "bash", "-c", reach)
		return code
	}
	if code := try(); code != 0 {
		t.Fatalf("node1 is not reachable: exit code %d", code)
	}
	t.run("link", "down", "node1")
	if code := try(); code == 0 {
		t.Error("node1 is reachable although its link is down")
	}
	t.run("link", "up", "node1")
	if code := try(); code != 0 {
		t.Errorf("node1 is not reachable after its link was restored: exit code %d", code)
	}
}

func testNode(t *tester) {
	t.run("exec", "node2", "--", "mkdir", "/sys/fs/bpf/pin")
	inside := descendants(t.T, t.pid("node2"))
	t.run("node", "stop", "node2")
	for _, process := range inside {
		if process.alive() {
			t.Errorf("process %d of node2 is still running: %s", process.pid, process.command)
		}
	}
	if output := t.run("hosts"); !slices.Contains(strings.Fields(lineOf(output, "node2")), "stopped") {
		t.Errorf("hosts: %s", output)
	}
	t.refused(1, "not running", "exec", "node2", "--", "true")
	t.refused(1, "not running", "node", "stop", "node2")
	t.refused(1, "not a node", "node", "stop", "router1")
	t.run("kubectl", "wait", "--for=condition=Ready=Unknown", "node/node2", "--timeout=60s")

	t.run("node", "start", "node2")
	t.refused(1, "running already", "node", "start", "node2")
	t.run("kubectl", "wait", "--for=condition=Ready", "node/node2", "--timeout=10s")
	t.run("kubectl", "rollout", "status", "deployment/echo", "--timeout=120s")
	if output := t.run("exec", "node2", "--", "ls", "/sys/fs/bpf"); strings.Contains(output, "pin") {
		t.Error("a pin still exists after the power loss")
	}
	if output := t.run("exec", "node2", "--", "ctr", "-n", "k8s.io", "images", "ls", "-q"); !strings.Contains(output, "millrace.test/other:dev") {
		t.Errorf("node2 lost an image: %s", output)
	}
}

func TestRefusals(t *testing.T) {
	lab := newTester(t)
	t.Run("not root", func(t *testing.T) {
		for _, args := range [][]string{{"up"}, {"down"}, {"hosts"}} {
			command := lab.command(args...)
			command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			if output, _ := command.CombinedOutput(); !strings.Contains(string(output), "run it as root") {
				t.Errorf("output of lab %v = %q", args, output)
			}
		}
	})
	t.Run("missing tool", func(t *testing.T) {
		command := lab.command("up")
		command.Env = append(command.Env, "PATH=/no-such-directory")
		if output, _ := command.CombinedOutput(); !strings.Contains(string(output), "hack/prerequisites.sh") {
			t.Errorf("output of up = %q", output)
		}
	})
	t.Run("directory of another user", func(t *testing.T) {
		lab := &tester{t, lab.program, t.TempDir()}
		if err := os.WriteFile(filepath.Join(lab.state, "letters"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		lab.refused(1, "--state", "up")
		lab.run("down")
		if _, err := os.Stat(filepath.Join(lab.state, "letters")); err != nil {
			t.Errorf("down removed a directory that does not belong to a lab: %v", err)
		}
	})
	t.Run("hidden directory", func(t *testing.T) {
		lab := &tester{t, lab.program, "/var/lib/lab"}
		lab.refused(1, "--state", "up")
	})
}
