// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
)

// marker is the content of a Secret that must not be in the archive.
const marker = "bWFya2VyLW9mLWEtc2VjcmV0"

type agents struct {
	count         int
	hangs         map[string]bool
	running, most atomic.Int64
}

func (a *agents) Nodes() (nodes []string) {
	for i := range a.count {
		nodes = append(nodes, fmt.Sprintf("node%d", i))
	}
	return nodes
}

func (a *agents) Run(ctx context.Context, node string, args []string, out io.Writer) error {
	running := a.running.Add(1)
	defer a.running.Add(-1)
	for most := a.most.Load(); running > most && !a.most.CompareAndSwap(most, running); most = a.most.Load() {
	}
	if a.hangs[node] {
		<-ctx.Done()
		return ctx.Err()
	}
	_, err := fmt.Fprintf(out, "{%q: %q}\n", node, args[0])
	return err
}

func objects(t *testing.T) []runtime.Object {
	t.Helper()
	applied := map[string]any{"kubectl.kubernetes.io/last-applied-configuration": `{"data": {"password": "` + marker + `"}}`}
	container := map[string]any{"name": "c", "env": []any{map[string]any{"name": "PASSWORD", "value": marker}}}
	made := func(version, kind, namespace string, spec map[string]any) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": version, "kind": kind, "spec": spec,
			"metadata": map[string]any{"name": "some", "namespace": namespace, "annotations": applied},
		}}
	}
	secret := made("v1", "Secret", "millrace-system", nil).(*unstructured.Unstructured)
	secret.Object["data"] = map[string]any{"password": marker}
	return []runtime.Object{
		secret,
		made("v1", "Service", "shop", map[string]any{"type": "LoadBalancer"}),
		made("v1", "Pod", "millrace-system", map[string]any{"containers": []any{container}, "initContainers": []any{container}}),
		made("v1", "Pod", "shop", map[string]any{"containers": []any{container}}),
		made("apps/v1", "DaemonSet", "millrace-system", map[string]any{
			"template": map[string]any{"spec": map[string]any{"containers": []any{container}}},
		}),
	}
}

func clusterOf(t *testing.T, runner Runner) Cluster {
	t.Helper()
	lists := map[schema.GroupVersionResource]string{}
	for _, resource := range append(resources, namespaced...) {
		parts := strings.Split(resource, "/")
		lists[schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}] = parts[2] + "List"
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: "millrace-system"}, Spec: corev1.PodSpec{NodeName: "node0"},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "lbagent", RestartCount: 1}}},
	}
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}, Reason: "KeyGenerated", Type: "Normal", Message: "a new key",
	}
	return Cluster{
		Objects: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects(t)...),
		Clients: fake.NewClientset(pod, event), Agents: runner, Namespace: "millrace-system", Version: "v1",
	}
}

func dumped(t *testing.T, of Cluster, limits Limits) (files map[string]string, missing []string) {
	t.Helper()
	var out bytes.Buffer
	missing, err := Dump(t.Context(), of, limits, time.Unix(1_800_000_000, 0), &out)
	if err != nil {
		t.Fatal(err)
	}
	compressed, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for archive := tar.NewReader(compressed); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, missing
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(header.Name, "millrace-sysdump/")] = string(content)
	}
}

func TestNoSecrets(t *testing.T) {
	files, missing := dumped(t, clusterOf(t, &agents{count: 2}), Usual)
	if len(missing) > 0 {
		t.Errorf("missing is %q", missing)
	}
	for name, content := range files {
		if strings.Contains(content, marker) {
			t.Errorf("%s has the marker: %s", name, content)
		}
		if strings.Contains(name, "secret") {
			t.Errorf("there is %s", name)
		}
	}
	for name, text := range map[string]string{
		"versions.json": `"millrace": "v1"`, "events.txt": "KeyGenerated", "objects/services.yaml": "type: LoadBalancer",
		"objects/pods.yaml": "name: PASSWORD", "objects/daemonsets.yaml": removed, "nodes/node1/maps.json": `"dump"`,
		"nodes/node0/bgp-peers.json": `"bgp"`, "nodes/node1/history.json": `"history"`, "logs/agent/lbagent.log": "fake logs", "logs/agent/lbagent.previous.log": "fake logs",
	} {
		if !strings.Contains(files[name], text) {
			t.Errorf("%s has no %q: %s", name, text, files[name])
		}
	}
	if strings.Contains(files["objects/pods.yaml"], "namespace: shop") {
		t.Errorf("pods are %s", files["objects/pods.yaml"])
	}
}

func TestHungNodes(t *testing.T) {
	limits := Usual
	limits.Node = 200 * time.Millisecond
	cluster := &agents{count: 100, hangs: map[string]bool{"node7": true, "node70": true}}
	files, missing := dumped(t, clusterOf(t, cluster), limits)
	for i := range cluster.count {
		node := fmt.Sprintf("node%d", i)
		if _, found := files["nodes/"+node+"/maps.json"]; found == cluster.hangs[node] {
			t.Errorf("%s is in the archive: %t", node, found)
		}
	}
	problems := strings.Join(missing, "\n")
	if strings.Count(problems, "node node7: ") != len(questions) || strings.Count(problems, "node node70: ") != len(questions) || files["missing.txt"] != problems+"\n" {
		t.Errorf("missing is %s", problems)
	}
	if most := cluster.most.Load(); most > int64(limits.MaxConcurrent) {
		t.Errorf("%d nodes were queried concurrently", most)
	}
}

func TestLimit(t *testing.T) {
	limits := Usual
	limits.Whole, limits.Node = 300*time.Millisecond, time.Hour
	cluster := &agents{count: 50, hangs: map[string]bool{}}
	for _, node := range cluster.Nodes() {
		cluster.hangs[node] = true
	}
	files, missing := dumped(t, clusterOf(t, cluster), limits)
	if len(missing) != cluster.count*len(questions) || files["objects/services.yaml"] == "" {
		t.Errorf("%d are missing, of objects there are %q", len(missing), files["objects/services.yaml"])
	}
}
