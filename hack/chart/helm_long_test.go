// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package chart

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func onDisk(t *testing.T) string {
	t.Helper()
	files, err := Files(t.Context(), "../..", Development)
	if err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(t.TempDir(), "millrace")
	for name, content := range files {
		file := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

func helm(t *testing.T, arguments ...string) (out, complaints string, err error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", append([]string{"tool", "-modfile=hack/tools/helm/go.mod", "helm"}, arguments...)...)
	command.Dir = "../.."
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err = command.Run()
	return stdout.String(), stderr.String(), err
}

func rendered(t *testing.T, arguments ...string) []*unstructured.Unstructured {
	t.Helper()
	out, complaints, err := helm(t, append([]string{"template", "millrace"}, arguments...)...)
	if err != nil {
		t.Fatalf("helm template %s: %v: %s", arguments, err, complaints)
	}
	found, err := objects([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func byKey(t *testing.T, objects []*unstructured.Unstructured) map[key]map[string]any {
	t.Helper()
	found := map[key]map[string]any{}
	for _, object := range objects {
		all := object.GetLabels()
		maps.DeleteFunc(all, func(name, _ string) bool {
			switch name {
			case "app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart":
				return true
			}
			return false
		})
		if object.SetLabels(all); len(all) == 0 {
			unstructured.RemoveNestedField(object.Object, "metadata", "labels")
		}
		if _, twice := found[keyOf(object)]; twice {
			t.Errorf("%v exists twice", keyOf(object))
		}
		found[keyOf(object)] = object.Object
	}
	return found
}

// TestRendered checks that the rendered chart equals the output of kustomize for config/, except for labels.
func TestRendered(t *testing.T) {
	chart := onDisk(t)
	for _, test := range []struct {
		name                  string
		values                string
		resources, components []string
	}{
		{"default", "", []string{"default"}, nil},
		{"gateway", "gateway.enabled=true", []string{"default", "gateway"}, nil},
		{"gateway in namespaces that permit it", "gateway.enabled=true,gateway.namespaces=null", []string{"default", "gateway"}, []string{"gateway-granted"}},
		{"live API", "liveapi.enabled=true", []string{"default"}, []string{"liveapi"}},
		{"webhook", "webhook.enabled=true", []string{"default"}, []string{"webhook", "webhook-self-signed"}},
		{"monitors", "monitors.enabled=true", []string{"default"}, []string{"monitors"}},
		{"rules and dashboards", "rules.enabled=true,dashboards.enabled=true", []string{"default"}, []string{"rules", "dashboards"}},
		{
			"all", "gateway.enabled=true,liveapi.enabled=true,webhook.enabled=true,monitors.enabled=true,rules.enabled=true,dashboards.enabled=true",
			[]string{"default", "gateway"}, []string{"liveapi", "webhook", "webhook-self-signed", "monitors", "rules", "dashboards"},
		},
		{"parts", "crds=false,namespaces=false", []string{"rbac", "policy", "operator", "lbagent"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			want, err := Render(t.Context(), "../..", test.resources, test.components)
			if err != nil {
				t.Fatal(err)
			}
			got := rendered(t, chart, "--no-hooks", "--set", test.values)
			if difference := cmp.Diff(byKey(t, want), byKey(t, got)); difference != "" {
				t.Errorf("-kustomize +helm: %s", difference)
			}
		})
	}
}

// TestGatewayNamespaces checks that the chart binds the gateway's roles in the namespaces of the value only.
func TestGatewayNamespaces(t *testing.T) {
	bound := map[string]bool{}
	for _, object := range rendered(t, onDisk(t), "--set", "gateway.enabled=true,gateway.namespaces={shop,office}") {
		role, _, _ := unstructured.NestedString(object.Object, "roleRef", "name")
		if role == "millrace-gateway-secrets" || role == "millrace-gateway-proxies" {
			bound[object.GetKind()+" "+object.GetNamespace()+" "+object.GetName()] = true
		}
	}
	want := map[string]bool{
		"RoleBinding millrace-system millrace-gateway-proxies": true,
		"RoleBinding shop millrace-gateway-secrets":            true, "RoleBinding shop millrace-gateway-proxies": true,
		"RoleBinding office millrace-gateway-secrets": true, "RoleBinding office millrace-gateway-proxies": true,
	}
	if difference := cmp.Diff(want, bound); difference != "" {
		t.Error(difference)
	}
}

// TestPullSecrets checks that all pods, including those of hooks, have the pull secrets and images of the
// values.
func TestPullSecrets(t *testing.T) {
	pods := 0
	for _, object := range rendered(t, onDisk(t), "--set", "imagePullSecrets[0].name=registry",
		"--set", "images.registry=registry.example.com:5000/millrace,images.tag=v1,images.pullPolicy=Always",
		"--set", "gateway.enabled=true,liveapi.enabled=true,openshift.scc=true") {
		pod, found, err := unstructured.NestedMap(object.Object, "spec", "template", "spec")
		if err != nil || !found {
			continue
		}
		pods++
		if difference := cmp.Diff([]any{map[string]any{"name": "registry"}}, pod["imagePullSecrets"]); difference != "" {
			t.Errorf("%s %s: %s", object.GetKind(), object.GetName(), difference)
		}
		containers, _ := pod["containers"].([]any)
		for _, container := range containers {
			container, _ := container.(map[string]any)
			image, _ := container["image"].(string)
			if !strings.HasPrefix(image, "registry.example.com:5000/millrace/") || !strings.HasSuffix(image, ":v1") || container["imagePullPolicy"] != "Always" {
				t.Errorf("%s %s has the image %s and %v", object.GetKind(), object.GetName(), image, container["imagePullPolicy"])
			}
		}
	}
	if pods != 7 {
		t.Errorf("%d objects have pods, want 4 workloads and 3 hooks", pods)
	}
}

// TestWorkloadOptions checks that each option applies to the pods of each workload and replaces the default.
func TestWorkloadOptions(t *testing.T) {
	var values []string
	for _, name := range []string{"operator", "agent", "gateway", "liveapi"} {
		for _, option := range []string{
			"resources.limits.memory=1Gi", "nodeSelector.disk=fast", "tolerations[0].key=lb", "affinity.nodeAffinity.x=y",
			"topologySpreadConstraints[0].maxSkew=1", "priorityClassName=high", "podAnnotations.a=b", "podLabels.c=d",
			"extraEnv[0].name=E", "extraEnv[0].value=F", "extraArgs={--v=1}",
		} {
			values = append(values, "--set", name+"."+option)
		}
	}
	all := append([]string{
		onDisk(t), "--no-hooks", "--set", "operator.replicas=3,gateway.enabled=true,liveapi.enabled=true,monitors.enabled=true,monitors.labels.release=x",
	}, values...)
	pods, monitors := 0, 0
	for _, object := range rendered(t, all...) {
		if strings.HasSuffix(object.GetKind(), "Monitor") && object.GetLabels()["release"] == "x" {
			monitors++
		}
		if _, is := workloads[object.GetName()]; !is || object.GetKind() != "Deployment" && object.GetKind() != "DaemonSet" {
			continue
		}
		pods++
		replicas, _, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "replicas")
		if object.GetName() == "millrace-operator" && replicas != int64(3) {
			t.Errorf("the operator has %v replicas", replicas)
		}
		template, _, _ := unstructured.NestedMap(object.Object, "spec", "template")
		text, err := yaml.Marshal(template)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"memory: 1Gi", "disk: fast", "key: lb", "x: \"y\"", "maxSkew: 1", "priorityClassName: high", "a: b", "c: d", "name: E", "- --v=1",
		} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s has no %q:\n%s", object.GetName(), want, text)
			}
		}
		if strings.Contains(string(text), "podAntiAffinity") {
			t.Errorf("%s has the default affinity, too", object.GetName())
		}
	}
	if pods != 4 || monitors == 0 {
		t.Errorf("%d workloads and %d monitors have the options", pods, monitors)
	}
}

// TestDigests checks that a digest selects the image, and that a tag is rejected if the digest would override
// it.
func TestDigests(t *testing.T) {
	chart, digest := onDisk(t), "sha256:"+strings.Repeat("a", 64)
	out, complaints, err := helm(t, "template", "millrace", chart, "--set", "images.digests.operator="+digest)
	if want := "image: " + Development.Registry + "/operator:dev@" + digest; err != nil || !strings.Contains(out, want) {
		t.Errorf("%v: %s: no %s", err, complaints, want)
	}
	_, complaints, err = helm(t, "template", "millrace", chart, "--set", "images.tag=v1,images.digests.operator="+digest)
	if want := "images.tag is v1, but images.digests.operator selects the image " + digest; err == nil || !strings.Contains(complaints, want) {
		t.Errorf("%v: %s: want %q", err, complaints, want)
	}
}

func TestLint(t *testing.T) {
	if out, complaints, err := helm(t, "lint", "--strict", onDisk(t)); err != nil {
		t.Errorf("%v: %s%s", err, out, complaints)
	}
}

// TestSchema checks that values that have no effect or the wrong type are rejected by name.
func TestSchema(t *testing.T) {
	chart := onDisk(t)
	for value, problem := range map[string]string{
		"images.registry=registry.example.com/": "/images/registry",
		"images.digests.lbagent=sha256:1":       "/images/digests/lbagent",
		"images.pullPolicy=Sometimes":           "/images/pullPolicy",
		"agent.extraArgs={uplinks=eth0}":        "/agent/extraArgs/0",
		"operator.replicas=0":                   "/operator/replicas",
		"operator.tolerations.key=a":            "/operator/tolerations",
		"gateway.enable=true":                   "/gateway",
		"gateway.namespaces={Shop}":             "/gateway/namespaces/0",
		"crds=maybe":                            "/crds",
	} {
		_, complaints, err := helm(t, "template", "millrace", chart, "--set", value)
		if err == nil || !strings.Contains(complaints, problem) {
			t.Errorf("--set %s: %v: %s", value, err, complaints)
		}
	}
}
