// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// objects are API objects by kind and name, as in `delete`.
type objects map[string]runtime.Object

// storyDecoder rejects unknown fields.
var storyDecoder = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, millracev1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}()

func (o objects) apply(data []byte) error {
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		object, kind, err := storyDecoder.Decode(document, nil, nil)
		if err != nil {
			return fmt.Errorf("%w in\n%s", err, document)
		}
		named, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		o[kind.Kind+" "+strings.TrimPrefix(named.GetNamespace()+"/"+named.GetName(), "/")] = object
	}
}

func (o objects) delete(args []string) error {
	name := strings.Join(args, " ")
	if o[name] == nil {
		return fmt.Errorf("no object %s", name)
	}
	delete(o, name)
	return nil
}

func (o objects) snapshot() *model.Snapshot {
	s := &model.Snapshot{NodeName: thisNode}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		switch object := o[name].(type) {
		case *corev1.Node:
			s.Node = object
		case *corev1.Service:
			s.Services = append(s.Services, object)
		case *discoveryv1.EndpointSlice:
			s.EndpointSlices = append(s.EndpointSlices, object)
		case *millracev1beta1.VIP:
			s.VIPs = append(s.VIPs, object)
		case *millracev1beta1.VIPPool:
			s.Pools = append(s.Pools, object)
		case *millracev1beta1.LBNode:
			s.LBNodes = append(s.LBNodes, object)
		case *millracev1beta1.LBPeer:
			s.Peers = append(s.Peers, object)
		case *millracev1beta1.VIPRoute:
			s.Routes = append(s.Routes, object)
		case *millracev1beta1.VIPAdvertisement:
			s.Advertisements = append(s.Advertisements, object)
		}
	}
	return s
}
