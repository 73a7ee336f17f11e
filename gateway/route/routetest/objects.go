// SPDX-License-Identifier: Apache-2.0

package routetest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

// epoch is the creation time of the first object of a text. Each following object is a minute younger.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Parse parses objects from YAML. Each object is younger than those before it. Kinds that model.Objects does
// not contain are ignored. A Secret with the annotation test/certificate gets a certificate for the names in
// the annotation, and a ConfigMap a CA certificate.
func Parse(text []byte) (*model.Objects, error) {
	objects := &model.Objects{}
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for count := 0; ; count++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if err := add(objects, document, count); err != nil {
			return nil, fmt.Errorf("document %d: %w", count, err)
		}
	}
}

func add(objects *model.Objects, document []byte, count int) error {
	var meta metav1.TypeMeta
	if err := strict.Unmarshal(document, &meta); err != nil {
		return err
	}
	into := slot(objects, meta.Kind)
	if into == nil {
		return nil
	}
	list := reflect.ValueOf(into).Elem()
	item := reflect.New(list.Type().Elem().Elem())
	if err := strict.UnmarshalStrict(document, item.Interface()); err != nil {
		return fmt.Errorf("%s: %w", meta.Kind, err)
	}
	object := item.Interface().(metav1.Object)
	complete(object, count)
	if secret, ok := object.(*corev1.Secret); ok {
		for name, text := range secret.StringData {
			if secret.Data == nil {
				secret.Data = map[string][]byte{}
			}
			secret.Data[name] = []byte(text)
		}
		if err := fill(secret); err != nil {
			return err
		}
	}
	if configMap, ok := object.(*corev1.ConfigMap); ok && configMap.Annotations[AnnotationCertificate] != "" {
		chain, _, err := Certificate(configMap.Annotations[AnnotationCertificate])
		if err != nil {
			return err
		}
		configMap.Data = map[string]string{"ca.crt": string(chain)}
	}
	if secret, ok := object.(*corev1.Secret); ok && secret.Type == corev1.SecretTypeOpaque {
		objects.Users = append(objects.Users, secret)
		return nil
	}
	list.Set(reflect.Append(list, item))
	return nil
}

// complete sets the fields that the API server sets, such as the creation time and the generation.
func complete(object metav1.Object, count int) {
	if object.GetCreationTimestamp().Time.IsZero() {
		object.SetCreationTimestamp(metav1.NewTime(epoch.Add(time.Duration(count) * time.Minute)))
	}
	if object.GetGeneration() == 0 {
		object.SetGeneration(1)
	}
	if namespace, ok := object.(*corev1.Namespace); ok {
		if namespace.Labels == nil {
			namespace.Labels = map[string]string{}
		}
		namespace.Labels[corev1.LabelMetadataName] = namespace.Name
	}
}

func slot(objects *model.Objects, kind string) any {
	return map[string]any{
		"IngressClass":     &objects.IngressClasses,
		"Ingress":          &objects.Ingresses,
		"GatewayClass":     &objects.GatewayClasses,
		"Gateway":          &objects.Gateways,
		"ListenerSet":      &objects.ListenerSets,
		"HTTPRoute":        &objects.HTTPRoutes,
		"GRPCRoute":        &objects.GRPCRoutes,
		"TLSRoute":         &objects.TLSRoutes,
		"TCPRoute":         &objects.TCPRoutes,
		"UDPRoute":         &objects.UDPRoutes,
		"ReferenceGrant":   &objects.ReferenceGrants,
		"BackendTLSPolicy": &objects.BackendTLSPolicies,
		"Service":          &objects.Services,
		"Namespace":        &objects.Namespaces,
		"Secret":           &objects.Secrets,
		"ConfigMap":        &objects.ConfigMaps,
	}[kind]
}
