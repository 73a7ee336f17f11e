// SPDX-License-Identifier: Apache-2.0

// Package manifests reads objects from files and validates them like an API server.
package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/cli-runtime/pkg/resource"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/config/crd"
	gatewayapi "github.com/millrace-lb/millrace/config/gateway-api"
)

// Objects are the objects of files.
type Objects struct {
	// Known are objects of kinds that Millrace reads, unique and acceptable to an API server.
	Known []runtime.Object
	// Others counts the objects of other kinds.
	Others map[string]int
	// Problems are the reasons why objects, or fields of them, would be rejected.
	Problems []Problem
	Remarks  []string
	Sources  map[desired.Object]string
}

// Problem is the reason why an object would be rejected; without a readable name it is Document and its
// number.
type Problem struct {
	Source  string
	Object  desired.Object
	Message string
}

// Reader reads manifests.
type Reader struct {
	kinds     map[schema.GroupVersionKind]*crd.Kind
	gateway   gatewayapi.Kinds
	scheme    *runtime.Scheme
	decoder   runtime.Decoder
	namespace string
	found     Objects
}

// NewReader returns a reader; namespace is the namespace of objects without one.
func NewReader(namespace string) (*Reader, error) {
	kinds, err := crd.Kinds()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, gatewayv1.Install,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return &Reader{
		kinds: kinds, scheme: scheme, namespace: namespace,
		decoder: serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer(),
		found:   Objects{Others: map[string]int{}, Sources: map[desired.Object]string{}},
	}, nil
}

// Objects returns the objects that were read.
func (r *Reader) Objects() *Objects { return &r.found }

// ReadPath reads a file, or the files below a directory that kubectl would read.
func (r *Reader) ReadPath(path string) error {
	return filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir(), file != path && !slices.Contains(resource.FileExtensions, filepath.Ext(file)):
			return nil
		}
		opened, err := os.Open(file)
		if err != nil {
			return err
		}
		defer opened.Close()
		return r.Read(file, opened)
	})
}

// Read reads the documents of a file; errors of objects are recorded as problems.
func (r *Reader) Read(source string, from io.Reader) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(from))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", source, err)
		}
		if err := r.document(source, document); err != nil {
			r.refuse(source, desired.Object{Kind: "Document", Name: strconv.Itoa(number)}, err.Error())
		}
	}
}

func (r *Reader) document(source string, text []byte) error {
	content, err := yaml.YAMLToJSONStrict(text)
	if err != nil || bytes.Equal(bytes.TrimSpace(content), []byte("null")) {
		return err
	}
	decoded, _, err := unstructured.UnstructuredJSONScheme.Decode(content, nil, nil)
	if err != nil {
		return err
	}
	switch decoded := decoded.(type) {
	case *unstructured.Unstructured:
		r.object(source, decoded)
	case *unstructured.UnstructuredList:
		for i := range decoded.Items {
			r.object(source, &decoded.Items[i])
		}
	}
	return nil
}

func (r *Reader) refuse(source string, object desired.Object, message string) {
	r.found.Problems = append(r.found.Problems, Problem{Source: source, Object: object, Message: message})
}

func (r *Reader) object(source string, object *unstructured.Unstructured) {
	kind := object.GroupVersionKind()
	if kind.Group == gatewayv1.GroupName && !r.scheme.Recognizes(kind) {
		// The versions of a kind of Gateway API have the same fields.
		kind.Version = gatewayv1.GroupVersion.Version
	}
	ours, isOurs := r.kinds[kind]
	switch {
	case isOurs || r.scheme.Recognizes(kind):
	case kind.Group == millracev1beta1.GroupVersion.Group:
		r.refuse(source, nameOf(object), fmt.Sprintf("there is no kind %s of %s", kind.Kind, object.GetAPIVersion()))
		return
	default:
		r.found.Others[kind.Kind]++
		return
	}
	object.SetGroupVersionKind(kind)
	if object.GetNamespace() == "" && r.isNamespaced(kind, ours) {
		object.SetNamespace(r.namespace)
	}
	name := nameOf(object)
	if other, twice := r.found.Sources[name]; twice {
		r.refuse(source, name, fmt.Sprintf("it is in %s, too: the one that is applied last wins", other))
		return
	}
	r.found.Sources[name] = source
	switch {
	case isOurs:
		r.ours(source, ours, object)
	case kind.Group != gatewayv1.GroupName || r.servedGateway(source, object):
		r.builtin(source, object)
	}
}

// servedGateway reports whether an API server would accept an object, with a remark if only the CRDs of the
// experimental channel do.
func (r *Reader) servedGateway(source string, object *unstructured.Unstructured) bool {
	name := nameOf(object)
	experimental := object.DeepCopy()
	problems, err := r.gateway.Problems(gatewayapi.Standard, object)
	if err == nil && len(problems) > 0 {
		var more []string
		more, err = r.gateway.Problems(gatewayapi.Experimental, experimental)
		if err == nil && len(more) == 0 {
			r.found.Remarks = append(r.found.Remarks, fmt.Sprintf("%s %s/%s needs the experimental channel of Gateway API: %s",
				name.Kind, name.Namespace, name.Name, strings.Join(problems, "; ")))
			object.Object = experimental.Object
			return true
		}
		problems = more
	}
	if err != nil {
		problems = []string{err.Error()}
	}
	for _, problem := range problems {
		r.refuse(source, name, problem)
	}
	return len(problems) == 0
}

func nameOf(object *unstructured.Unstructured) desired.Object {
	return desired.Object{Kind: object.GetKind(), Namespace: object.GetNamespace(), Name: object.GetName()}
}

// clusterScoped are the other cluster-scoped kinds.
var clusterScoped = []string{"Namespace", "Node", "IngressClass", "GatewayClass", "ServiceCIDR", "IPAddress", "PersistentVolume"}

func (r *Reader) isNamespaced(kind schema.GroupVersionKind, ours *crd.Kind) bool {
	if ours != nil {
		return ours.Namespaced
	}
	return !slices.Contains(clusterScoped, kind.Kind)
}

// ours leaves out objects that an API server would reject.
func (r *Reader) ours(source string, kind *crd.Kind, object *unstructured.Unstructured) {
	name := nameOf(object)
	problems := kind.Problems(object)
	for _, problem := range problems {
		r.refuse(source, name, problem)
	}
	if len(problems) > 0 {
		return
	}
	typed := newOurs(object.GetKind())
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		r.refuse(source, name, err.Error())
		return
	}
	r.found.Known = append(r.found.Known, typed)
}

// newOurs returns an empty object of one of Millrace's kinds; all versions have the same fields.
func newOurs(kind string) runtime.Object {
	switch kind {
	case "VIPPool":
		return &millracev1beta1.VIPPool{}
	case "VIP":
		return &millracev1beta1.VIP{}
	case "LBPeer":
		return &millracev1beta1.LBPeer{}
	case "VIPAdvertisement":
		return &millracev1beta1.VIPAdvertisement{}
	case "VIPRoute":
		return &millracev1beta1.VIPRoute{}
	case "LBNodeReport":
		return &millracev1beta1.LBNodeReport{}
	default:
		return &millracev1beta1.LBNode{}
	}
}

// builtin adds objects with unknown fields, too.
func (r *Reader) builtin(source string, object *unstructured.Unstructured) {
	content, err := object.MarshalJSON()
	if err != nil {
		r.refuse(source, nameOf(object), err.Error())
		return
	}
	decoded, _, err := r.decoder.Decode(content, nil, nil)
	if err != nil {
		message := err.Error()
		if strict, is := runtime.AsStrictDecodingError(err); is {
			message = joined(strict.Errors())
		}
		r.refuse(source, nameOf(object), message)
	}
	if decoded != nil {
		r.found.Known = append(r.found.Known, decoded)
	}
}

func joined(errs []error) string {
	texts := make([]string, 0, len(errs))
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}
