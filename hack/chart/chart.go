// SPDX-License-Identifier: Apache-2.0

// Package chart builds the Helm chart from config/chart and from templates that are generated from the output
// of kustomize for config/.
package chart

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/millrace-lb/millrace/hack/kustomize"
)

// Version specifies the version of a chart and its images.
type Version struct {
	// Chart is a semantic version without "v", and App the tag of the images.
	Chart, App string
	Registry   string
	Digests    map[string]string
}

// Development is the version of a checkout, which has the images of config/.
var Development = Version{Chart: "0.0.0-dev", App: "dev", Registry: "ghcr.io/millrace-lb"}

// holdLabel is in the node selector of the cleanup's DaemonSet until a hook has verified that Helm uninstalls
// the release. If another tool applies the hooks, they therefore run no pod.
const holdLabel = "millrace.io/uninstalling"

// component is an optional part of the chart that a value enables: additional resources, and kustomize
// components that change the default ones.
type component struct {
	name       string
	resources  []string
	components []string
}

// components are the optional components. The first three change the workloads of config/default.
var components = []component{
	{name: "gateway", resources: []string{"gateway"}},
	{name: "liveapi", components: []string{"liveapi"}},
	{name: "webhook", components: []string{"webhook", "webhook-self-signed"}},
	{name: "monitors", components: []string{"monitors"}},
	{name: "rules", components: []string{"rules"}},
	{name: "dashboards", components: []string{"dashboards"}},
}

func (c component) condition() string { return ".Values." + c.name + ".enabled" }

// Files returns the files of the chart by their paths.
func Files(ctx context.Context, root string, version Version) (map[string][]byte, error) {
	files, err := written(filepath.Join(root, "config", "chart"), version)
	if err != nil {
		return nil, err
	}
	base, err := Render(ctx, root, []string{"default"}, nil)
	if err != nil {
		return nil, err
	}
	for _, c := range components {
		extended, err := Render(ctx, root, append([]string{"default"}, c.resources...), c.components)
		if err != nil {
			return nil, err
		}
		var added []*unstructured.Unstructured
		if base, added, err = extend(base, extended, c.condition()); err != nil {
			return nil, fmt.Errorf("component %s: %w", c.name, err)
		}
		optional := slices.DeleteFunc(slices.Clone(added), func(o *unstructured.Unstructured) bool { return !isForAllNamespaces(o) })
		added = slices.DeleteFunc(added, isForAllNamespaces)
		if err := addTemplates(files, c.name, c.condition(), added); err != nil {
			return nil, err
		}
		if len(optional) > 0 {
			condition := "and " + c.condition() + ` (has "*" (.Values.gateway.namespaces | default list))`
			if err := addTemplates(files, c.name+"_all_namespaces", condition, optional); err != nil {
				return nil, err
			}
		}
	}
	groups := map[string][]*unstructured.Unstructured{}
	for _, object := range base {
		group := groupOf(object)
		groups[group] = append(groups[group], object)
	}
	conditions := map[string]string{"crds": ".Values.crds", "namespaces": ".Values.namespaces"}
	for group, objects := range groups {
		if err := addTemplates(files, group, conditions[group], objects); err != nil {
			return nil, err
		}
	}
	cleanup, err := Render(ctx, root, []string{"cleanup"}, nil)
	if err != nil {
		return nil, err
	}
	for _, object := range cleanup {
		object.SetAnnotations(map[string]string{
			"helm.sh/hook": "pre-delete", "helm.sh/hook-weight": "2", "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
		})
		// No node has the label. The hook that waits for the cleanup removes the selector.
		if err := unstructured.SetNestedField(object.Object, "true", "spec", "template", "spec", "nodeSelector", holdLabel); err != nil {
			return nil, fmt.Errorf("hold %s: %w", object.GetName(), err)
		}
	}
	return files, addTemplates(files, "cleanup", ".Values.uninstall.hooks", cleanup)
}

func isForAllNamespaces(object *unstructured.Unstructured) bool {
	name := object.GetName()
	return object.GetKind() == "ClusterRoleBinding" && (name == "millrace-gateway-secrets" || name == "millrace-gateway-proxies")
}

// written returns the files of the chart that are not generated, with the version inserted.
func written(directory string, version Version) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(directory, path)
		files[filepath.ToSlash(name)] = content
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read config/chart: %w", err)
	}
	replace := func(file, pattern, text string) {
		files[file] = regexp.MustCompile(`(?m)^`+pattern+`$`).ReplaceAll(files[file], []byte(text))
	}
	replace("Chart.yaml", "version: .*", "version: "+version.Chart)
	replace("Chart.yaml", "appVersion: .*", `appVersion: "`+version.App+`"`)
	replace("values.yaml", "  registry: .*", "  registry: "+version.Registry)
	replace("values.yaml", "  tag: .*", `  tag: "`+version.App+`"`)
	if len(version.Digests) > 0 {
		var names []string
		for name, digest := range version.Digests {
			names = append(names, "    "+name+": "+digest)
		}
		slices.Sort(names)
		replace("values.yaml", "  digests: .*", "  digests:\n"+strings.Join(names, "\n"))
	}
	files["README.md"] = []byte(readme(string(files["values.yaml"])))
	return files, nil
}

// Render returns the objects that kustomize builds from directories of config/ with components.
func Render(ctx context.Context, root string, resources, components []string) ([]*unstructured.Unstructured, error) {
	overlay, err := os.MkdirTemp("", "millrace-overlay")
	if err != nil {
		return nil, fmt.Errorf("create an overlay: %w", err)
	}
	defer os.RemoveAll(overlay)
	absolute, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("create an overlay: %w", err)
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
	for _, list := range []struct {
		name  string
		items []string
	}{{"resources", resources}, {"components", components}} {
		if len(list.items) > 0 {
			text += list.name + ":\n"
		}
		for _, item := range list.items {
			// kustomize accepts relative paths only.
			path, err := filepath.Rel(overlay, filepath.Join(absolute, "config", item))
			if err != nil {
				return nil, fmt.Errorf("create an overlay: %w", err)
			}
			text += "  - " + path + "\n"
		}
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("create an overlay: %w", err)
	}
	content, err := kustomize.Build(ctx, root, overlay)
	if err != nil {
		return nil, err
	}
	return objects(content)
}

func objects(content []byte) ([]*unstructured.Unstructured, error) {
	var found []*unstructured.Unstructured
	for _, document := range bytes.Split(content, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := utilyaml.Unmarshal(document, &object.Object); err != nil {
			return nil, fmt.Errorf("read what kustomize makes: %w", err)
		}
		found = append(found, object)
	}
	return found, nil
}

type key struct{ kind, namespace, name string }

func keyOf(object *unstructured.Unstructured) key {
	return key{object.GetKind(), object.GetNamespace(), object.GetName()}
}

// extend returns the objects of base with the additions in extended, and the objects that only extended
// contains. base may contain marks of other components.
func extend(base, extended []*unstructured.Unstructured, condition string) (merged, added []*unstructured.Unstructured, err error) {
	previous := map[key]*unstructured.Unstructured{}
	for _, object := range base {
		previous[keyOf(object)] = object
	}
	for _, object := range extended {
		known := previous[keyOf(object)]
		if known == nil {
			added = append(added, object)
			continue
		}
		result, err := mergeMaps(known.Object, object.Object, condition)
		if err != nil {
			return nil, nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		known.Object = result
	}
	return base, added, nil
}

func groupOf(object *unstructured.Unstructured) string {
	switch kind := object.GetKind(); {
	case kind == "Namespace":
		return "namespaces"
	case kind == "CustomResourceDefinition":
		return "crds"
	case strings.HasPrefix(kind, "ValidatingAdmissionPolicy"):
		return "policy"
	case kind == "Deployment" || kind == "PodDisruptionBudget":
		return "operator"
	case kind == "DaemonSet":
		return "agent"
	default:
		return "rbac"
	}
}

func addTemplates(files map[string][]byte, name, condition string, objects []*unstructured.Unstructured) error {
	var out bytes.Buffer
	out.WriteString("{{- /* Generated by hack/chart from config/. */}}\n")
	if condition != "" {
		fmt.Fprintf(&out, "{{- if %s }}\n", condition)
	}
	for _, object := range objects {
		if err := mark(object); err != nil {
			return err
		}
		text, err := template(object)
		if err != nil {
			return err
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	if condition != "" {
		out.WriteString("{{- end }}\n")
	}
	file := "templates/" + name + ".yaml"
	if files[file] != nil {
		return fmt.Errorf("config/chart has %s, which is generated: give it another name", file)
	}
	files[file] = out.Bytes()
	return nil
}
