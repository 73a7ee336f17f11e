// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

// Package release installs a release into the lab, only from its archives: the images from a registry with
// a password, the rest from the chart.
package release

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/test/harness"
)

var (
	cluster *harness.Cluster
	// work is a directory visible on all hosts of the lab.
	work string
	// helm is the version pinned in hack/tools.
	helm string
)

func TestMain(m *testing.M) {
	if layouts := os.Getenv(layoutsVariable); layouts != "" {
		fmt.Fprintln(os.Stderr, serve(strings.Split(layouts, ":")))
		os.Exit(1)
	}
	os.Exit(harness.RunTests(m, "release", prepare))
}

var nodes = []string{"node1", "node2", "node3"}

// containerd accepts registries without TLS on localhost only, so each node has its own.
const registry = "localhost:5000"

func prepare(ctx context.Context, c *harness.Cluster) error {
	cluster, work = c, filepath.Join(c.Root(), "dist", "test-release")
	helm = filepath.Join(work, "helm")
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	if err := linkPrograms(); err != nil {
		return err
	}
	if err := cluster.Up(ctx); err != nil {
		return err
	}
	// The echo server is not part of a release.
	_, err := cluster.Run(ctx, "image", "load", filepath.Join(cluster.Root(), "dist/images/echo-"+runtime.GOARCH+".tar"))
	return err
}

var made = map[string]bool{}

// releases builds each release once, which takes minutes.
func releases(t *testing.T, versions ...string) {
	t.Helper()
	for _, version := range versions {
		if made[version] {
			continue
		}
		if err := makeRelease(t.Context(), version); err != nil {
			t.Fatal(err)
		}
		made[version] = true
	}
}

func goRun(ctx context.Context, arguments ...string) error {
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Dir = cluster.Root()
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", strings.Join(arguments, " "), err, out)
	}
	return nil
}

// linkPrograms uses this checkout's programs for all systems.
func linkPrograms() error {
	bin := filepath.Join(cluster.Root(), "bin")
	for _, system := range []string{"linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64", "windows-amd64", "windows-arm64"} {
		directory := filepath.Join(work, "programs", system)
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return err
		}
		for _, program := range []string{"operator", "lbagent", "lbbfd", "gateway", "lbproxy", "liveapi", "millrace"} {
			if err := os.Link(filepath.Join(bin, program), filepath.Join(directory, program)); err != nil {
				return err
			}
		}
		if err := os.Link(filepath.Join(bin, "millrace"), filepath.Join(directory, "millrace.exe")); err != nil {
			return err
		}
	}
	return nil
}

func makeRelease(ctx context.Context, version string) error {
	output, program := filepath.Join(work, version), filepath.Join(work, "release")
	// go run would leave its child after a kill.
	if err := goRun(ctx, "build", "-o", program, "./hack/release"); err != nil {
		return err
	}
	if err := harness.RunIn(ctx, cluster.Root(), program, "--version", version, "--registry", registry+"/millrace",
		"--programs", filepath.Join(work, "programs"), "--output", output); err != nil {
		return err
	}
	if err := os.MkdirAll(airGap(version), 0o755); err != nil {
		return err
	}
	archive := filepath.Join(output, "millrace-"+version+"-airgap.tar")
	if out, err := exec.CommandContext(ctx, "tar", "-xf", archive, "-C", airGap(version)).CombinedOutput(); err != nil {
		return fmt.Errorf("tar -xf %s: %w: %s", archive, err, out)
	}
	return nil
}

func airGap(version string) string { return filepath.Join(work, "airgap-"+version) }

func chart(version string) string {
	return filepath.Join(airGap(version), "millrace-"+strings.TrimPrefix(version, "v")+".tgz")
}

// startRegistries runs this program as the registry of each node until the test's end.
func startRegistries(t *testing.T, versions ...string) {
	t.Helper()
	releases(t, versions...)
	var layouts []string
	for _, version := range versions {
		layouts = append(layouts, airGap(version))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(work, "registry")
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, content, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			// It ends by an interrupt only; later steps detect a missing registry.
			_ = cluster.Stream(ctx, io.Discard, "exec", node, "--", "env", layoutsVariable+"="+strings.Join(layouts, ":"), program)
		}()
		t.Cleanup(func() {
			cancel()
			<-ended
		})
	}
	for _, node := range nodes {
		eventually(t, time.Minute, func(ctx context.Context) error {
			status, err := cluster.Exec(ctx, node, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://"+registry+"/v2/")
			if err == nil && string(status) != "401" {
				err = fmt.Errorf("response of the registry without a password = %s", status)
			}
			return err
		})
	}
}

func runHelm(ctx context.Context, arguments ...string) (string, error) {
	all := []string{
		"env", "HOME=" + work, helm, "--kubeconfig", cluster.Kubeconfig(), "--namespace", "kube-system",
	}
	out, err := cluster.Exec(ctx, "cp", append(all, arguments...)...)
	return string(out), err
}

// settings are for nodes with little memory.
var settings = []string{
	"--set", "namespaces=false,imagePullSecrets[0].name=registry",
	"--set", "operator.extraArgs={--default-class},agent.extraArgs={--max-connections=65536,--max-udp-flows=65536}",
	"--wait", "--timeout", "4m",
}

func makePullSecret(t *testing.T) {
	t.Helper()
	kubectl(t, "apply", "-k", filepath.Join(cluster.Root(), "config/namespace"))
	kubectl(t, "-n", "millrace-system", "delete", "secret", "registry", "--ignore-not-found")
	kubectl(t, "-n", "millrace-system", "create", "secret", "docker-registry", "registry",
		"--docker-server="+registry, "--docker-username="+user, "--docker-password="+password)
}

// TestPreflight checks nodes before the installation with an image that needs a password, and leaves no
// objects.
func TestPreflight(t *testing.T) {
	startRegistries(t, "v0.1.0")
	makePullSecret(t)
	image := "--image=" + registry + "/millrace/lbagent:v0.1.0"
	out, err := cluster.Millrace(t.Context(), "preflight", image)
	if err == nil || !strings.Contains(out+err.Error(), "ErrImagePull") && !strings.Contains(out+err.Error(), "ImagePullBackOff") {
		t.Errorf("without the Secret: %v: %s", err, out)
	}
	out, err = cluster.Millrace(t.Context(), "preflight", image, "--image-pull-secret=registry")
	if err != nil || !strings.Contains(out, "3 nodes: 0 faults") {
		t.Errorf("with the Secret: %v: %s", err, out)
	}
	faults(t, image)
	if left := kubectl(t, "get", "namespaces", "-l", "app.kubernetes.io/name=millrace-preflight", "-o", "name"); left != "" {
		t.Errorf("remaining: %s", left)
	}
}

// faults breaks each node: forwarding on node1, long packets to node2, all packets to node3.
func faults(t *testing.T, image string) {
	t.Helper()
	const drop = "table inet fault { chain input { type filter hook input priority filter; iifname != lo udp dport 6081 %s drop; }; }"
	for node, commands := range map[string][2]string{
		"node1": {"sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv4.ip_forward=1"},
		"node2": {"nft '" + fmt.Sprintf(drop, "udp length > 1000") + "'", "nft delete table inet fault"},
		"node3": {"nft '" + fmt.Sprintf(drop, "") + "'", "nft delete table inet fault"},
	} {
		if out, err := cluster.Exec(t.Context(), node, "sh", "-c", commands[0]); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		defer func() {
			if out, err := cluster.Exec(t.Context(), node, "sh", "-c", commands[1]); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}()
	}
	out, err := cluster.Millrace(t.Context(), "preflight", image, "--image-pull-secret=registry", "-o", "json")
	if err == nil {
		t.Error("no fault was reported")
	}
	var result struct {
		Nodes []consoleapi.Preflight `json:"nodes"`
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found := map[string][]string{}
	for _, node := range result.Nodes {
		for _, finding := range node.Findings {
			if finding.Level != consoleapi.LevelOK {
				found[node.Node] = append(found[node.Node], string(finding.Level)+" "+finding.Check)
			}
		}
	}
	want := map[string][]string{
		"node1": {"Fault forwarding", "Fault nodes", "Fault mtu"}, "node2": {"Fault nodes"}, "node3": {"Fault mtu"},
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("%s\n%s", diff, out)
	}
}

// TestRelease installs, upgrades under load, rolls back and uninstalls a release.
func TestRelease(t *testing.T) {
	if err := goRun(t.Context(), "build", "-modfile=hack/tools/helm/go.mod", "-o", helm, "helm.sh/helm/v4/cmd/helm"); err != nil {
		t.Fatal(err)
	}
	startRegistries(t, "v0.1.0", "v0.1.1")
	makePullSecret(t)
	mustHelm(t, append([]string{"install", "millrace", chart("v0.1.0")}, settings...)...)
	for _, manifest := range []string{harness.Network, harness.Echo} {
		if err := cluster.Apply(t.Context(), manifest); err != nil {
			t.Fatal(err)
		}
	}
	if err := cluster.RolledOut(t.Context(), "default", "deployment/echo"); err != nil {
		t.Fatal(err)
	}
	var vip netip.Addr
	eventually(t, time.Minute, func(ctx context.Context) (err error) {
		vip, _, err = cluster.DualStack(ctx, "default", "echo")
		return err
	})
	eventually(t, time.Minute, func(ctx context.Context) error { return cluster.RoutedTo(ctx, "router1", vip, 1, 2, 3) })
	runs(t, "v0.1.0")

	underLoad(t, vip, append([]string{"upgrade", "millrace", chart("v0.1.1")}, settings...)...)
	runs(t, "v0.1.1")
	underLoad(t, vip, "rollback", "millrace", "1", "--wait", "--timeout", "4m")
	runs(t, "v0.1.0")

	if _, err := runHelm(t.Context(), "uninstall", "millrace", "--timeout", "4m"); err == nil {
		t.Fatal("uninstalled although a Service has an address")
	} else if !strings.Contains(err.Error(), "default/echo") {
		t.Errorf("the error does not mention the Service: %v", err)
	}
	if load, err := cluster.Requests(t.Context(), vip, 100); err != nil || load.Errors > 0 {
		t.Errorf("after the failed uninstallation: %v: %+v", err, load)
	}
	// A rollback reverts the started uninstallation.
	underLoad(t, vip, "rollback", "millrace", "3", "--wait", "--timeout", "4m")
	underLoad(t, vip, append([]string{"upgrade", "millrace", chart("v0.1.1")}, settings...)...)
	kubectl(t, "-n", "millrace-system", "annotate", "deployment", "millrace-operator", "millrace.io/release-services=true")
	mustHelm(t, "uninstall", "millrace", "--wait", "--timeout", "4m")
	nothingLeft(t)
	kubectl(t, "delete", "service", "echo", "--timeout=30s")
}

// underLoad runs helm during requests to a VIP and fails the test if one fails.
func underLoad(t *testing.T, vip netip.Addr, arguments ...string) {
	t.Helper()
	load, err := cluster.RequestsWhile(t.Context(), vip, 100, func(ctx context.Context) error {
		_, err := runHelm(ctx, arguments...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if load.Errors > 0 || load.Requests < 50 {
		t.Errorf("helm %s: %d of %d requests failed: %q", arguments[0], load.Errors, load.Requests, load.FirstErrors)
	}
}

func runs(t *testing.T, version string) {
	t.Helper()
	images := strings.Fields(kubectl(t, "-n", "millrace-system", "get", "pods", "--field-selector=status.phase=Running",
		"-l", "app.kubernetes.io/component in (agent, operator)", "-o", "jsonpath={.items[*].spec.containers[*].image}"))
	if len(images) < 2*len(nodes) {
		t.Errorf("only %d containers are running: %s", len(images), images)
	}
	for _, image := range images {
		if !strings.HasPrefix(image, registry+"/millrace/") || !strings.Contains(image, ":"+version+"@sha256:") {
			t.Errorf("running image %s, want release %s", image, version)
		}
	}
}

func nothingLeft(t *testing.T) {
	t.Helper()
	for _, kind := range []string{
		"customresourcedefinitions", "clusterroles", "clusterrolebindings", "validatingadmissionpolicies",
		"validatingadmissionpolicybindings", "deployments", "daemonsets", "jobs", "serviceaccounts", "roles", "rolebindings",
	} {
		names := strings.Fields(kubectl(t, "get", kind, "-A", "-o", "jsonpath={.items[*].metadata.name}"))
		names = slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, "millrace") })
		if len(names) > 0 {
			t.Errorf("%s were not deleted: %s", kind, names)
		}
	}
	for _, node := range nodes {
		if out, err := cluster.Exec(t.Context(), node, "ls", "/sys/fs/bpf/millrace"); err == nil {
			t.Errorf("%s has pins: %s", node, out)
		}
	}
	service := kubectl(t, "get", "service", "echo", "-o", "jsonpath={.metadata.finalizers}{.status.loadBalancer.ingress}")
	if service != "" {
		t.Errorf("the Service still has address %s", service)
	}
}

func mustHelm(t *testing.T, arguments ...string) {
	t.Helper()
	if out, err := runHelm(t.Context(), arguments...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := cluster.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func eventually(t *testing.T, limit time.Duration, check func(context.Context) error) {
	t.Helper()
	if err := harness.Eventually(t.Context(), limit, check); err != nil {
		t.Fatal(err)
	}
}
