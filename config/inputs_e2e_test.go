// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// leastRefused is the minimum number of different rejected objects.
const leastRefused = 100

type input struct {
	Name string
	Kind string
	// NameOf is the name of the object; empty: subject.
	NameOf string `json:"name-of"`
	Given  []given
	// Before is the spec of the object until it is changed or deleted; it is created if nil.
	Before, Spec map[string]any
	Delete       bool
	// Repeat is the number of copies of the addresses in the spec.
	Repeat int
	// Refused are texts of the rejection: the field, and the reason or advice.
	Refused []string
	// Warned are texts of the warning with which the object is accepted.
	Warned []string
}

type given struct {
	Kind, Name string
	Spec       map[string]any
}

func readInputs(t *testing.T, file string) []input {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var inputs []input
	if err := yaml.UnmarshalStrict(content, &inputs); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return inputs
}

func objectOf(kind, name string, spec map[string]any) *unstructured.Unstructured {
	object := ofNode(kind, name)
	if kind == "VIPRoute" {
		object.SetNamespace("default")
	}
	object.Object["spec"] = spec
	return object
}

func (i *input) object(spec map[string]any) *unstructured.Unstructured {
	name := i.NameOf
	if name == "" {
		name = "subject"
	}
	if i.Repeat > 0 {
		spec = map[string]any{"addresses": slices.Repeat(spec["addresses"].([]any), i.Repeat)}
	}
	return objectOf(i.Kind, name, spec)
}

func (i *input) attempt(ctx context.Context, admin client.Client, dryRun []string) error {
	object := i.object(i.Spec)
	switch {
	case i.Delete:
		return admin.Delete(ctx, object, &client.DeleteOptions{DryRun: dryRun})
	case i.Before == nil:
		return admin.Create(ctx, object, &client.CreateOptions{DryRun: dryRun})
	default:
		if err := admin.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		object.Object["spec"] = i.Spec
		return admin.Update(ctx, object, &client.UpdateOptions{DryRun: dryRun})
	}
}

func (i *input) prepare(t *testing.T, admin client.Client) (remove func()) {
	t.Helper()
	var objects []client.Object
	for _, object := range i.Given {
		objects = append(objects, objectOf(object.Kind, object.Name, object.Spec))
	}
	if i.Before != nil {
		objects = append(objects, i.object(i.Before))
	}
	for _, object := range objects {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	return func() { removeAll(t, admin, objects) }
}

// removeAll keeps the order, because policies reject deleting a pool before its VIPs.
func removeAll(t *testing.T, admin client.Client, objects []client.Object) {
	t.Helper()
	for _, object := range objects {
		eventually(t, "deleting "+object.GetName(), func(ctx context.Context) error {
			return client.IgnoreNotFound(admin.Delete(ctx, object))
		})
	}
}

// testRefused expects each rejection, by schema or policy, to name the invalid field.
func testRefused(t *testing.T, admin client.Client) {
	inputs := readInputs(t, "testdata/refused.yaml")
	different := map[string]string{}
	for _, input := range inputs {
		name := input.Name
		input.Name, input.Refused = "", nil
		text, err := json.Marshal(input)
		if err != nil {
			t.Fatal(err)
		}
		if other, found := different[string(text)]; found {
			t.Errorf("%q is the same as %q", name, other)
		}
		different[string(text)] = name
	}
	if len(different) < leastRefused {
		t.Errorf("%d different inputs, want %d at least", len(different), leastRefused)
	}
	for _, input := range inputs {
		t.Run(input.Name, func(t *testing.T) {
			defer input.prepare(t, admin)()
			// Policies and their parameters reach the API server through its own caches.
			eventually(t, "a dry run", func(ctx context.Context) error {
				return input.judge(input.attempt(ctx, admin, []string{metav1.DryRunAll}))
			})
			if err := input.judge(input.attempt(t.Context(), admin, nil)); err != nil {
				t.Error(err)
			}
		})
	}
}

func (i *input) judge(err error) error {
	if err == nil {
		return errors.New("not refused")
	}
	for _, text := range i.Refused {
		if !strings.Contains(err.Error(), text) {
			return fmt.Errorf("refused without %q: %w", text, err)
		}
	}
	if len(i.Refused) == 0 || !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		return fmt.Errorf("not refused as invalid: %w", err)
	}
	return nil
}

// testWarned uses only dry runs: later inputs overlap the same addresses.
func testWarned(t *testing.T, server *controlplane.Server) {
	admin, told := newWarningClient(t, server)
	for _, input := range readInputs(t, "testdata/warned.yaml") {
		t.Run(input.Name, func(t *testing.T) { input.expectWarning(t, admin, told) })
	}
}

func (i *input) expectWarning(t *testing.T, admin client.Client, told *controlplane.Warnings) {
	t.Helper()
	defer i.prepare(t, admin)()
	eventually(t, "a dry run", func(ctx context.Context) error {
		told.Take()
		if err := i.attempt(ctx, admin, []string{metav1.DryRunAll}); err != nil {
			return err
		}
		warning := told.Take()
		for _, text := range i.Warned {
			if !strings.Contains(warning, text) {
				return fmt.Errorf("the warning %q does not contain %q", warning, text)
			}
		}
		return nil
	})
}

func testAccepted(t *testing.T, admin client.Client) {
	var objects []client.Object
	defer func() { removeAll(t, admin, objects) }()
	for n, input := range readInputs(t, "testdata/accepted.yaml") {
		if input.NameOf == "" && input.Before == nil {
			input.NameOf = fmt.Sprintf("accepted-%d", n)
		}
		remove := input.prepare(t, admin)
		for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} {
			if err := input.attempt(t.Context(), admin, dryRun); err != nil {
				t.Errorf("%s, dry run %v: %v", input.Name, dryRun, err)
			}
		}
		if input.Before == nil {
			objects = append(objects, input.object(input.Spec))
		}
		remove()
	}
}

// testFullPools keeps pools of the maximum size within the API server's budget for policies.
func testFullPools(t *testing.T, server *controlplane.Server) {
	admin, told := newWarningClient(t, server)
	entries := func(network int) []any {
		texts := make([]any, 0, 256)
		for n := range 256 {
			texts = append(texts, fmt.Sprintf(" 2001:0db8:%04x:0000:0000:0000:%04x:0000 - 2001:0db8:%04x:0000:0000:0000:%04x:ffff ",
				network, n, network, n))
		}
		return texts
	}
	with := func(last string, network int) []any { return append(entries(network)[:255], last) }
	there := given{Kind: "VIPPool", Name: "there", Spec: map[string]any{"addresses": entries(0xa), "reserved": entries(0xa)}}
	vip := given{Kind: "VIP", Name: "2001-db8-b-0-0-0-ff-7", Spec: map[string]any{"address": "2001:db8:b::ff:7", "pool": "subject"}}
	for _, test := range []input{
		{
			Name: "inverted", Spec: map[string]any{"addresses": entries(0xb), "reserved": with("2001:db8:b::2-2001:db8:b::1", 0xb)},
			Refused: []string{"spec.reserved[255]", "inverted"},
		},
		{
			Name: "overlap", Given: []given{there},
			Spec:   map[string]any{"addresses": with("2001:db8:a::ff:ffff-2001:db8:a::ffff:ffff", 0xb), "reserved": entries(0xb)},
			Warned: []string{"spec.addresses[255]", "there"},
		},
		{
			Name: "in use", Given: []given{vip},
			Before:  map[string]any{"addresses": entries(0xb), "reserved": entries(0xc)},
			Spec:    map[string]any{"addresses": with("2001:db8:b:1::/64", 0xb), "reserved": entries(0xc)},
			Refused: []string{"spec.addresses: the VIP 2001:db8:b::ff:7"},
		},
	} {
		test.Kind = "VIPPool"
		t.Run(test.Name, func(t *testing.T) {
			if test.Warned != nil {
				test.expectWarning(t, admin, told)
				return
			}
			defer test.prepare(t, admin)()
			eventually(t, "a dry run", func(ctx context.Context) error {
				return test.judge(test.attempt(ctx, admin, []string{metav1.DryRunAll}))
			})
		})
	}
}
