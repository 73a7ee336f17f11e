// SPDX-License-Identifier: Apache-2.0

// Package kubevip converts settings of kube-vip and its cloud provider to objects of Millrace.
package kubevip

import (
	"io"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
)

// configMap is the ConfigMap of kube-vip-cloud-provider, with pools by namespace.
type configMap struct {
	migration.Meta
	Data map[string]string `json:"data"`
}

type workload struct {
	migration.Meta
	Spec struct {
		Template struct {
			Spec podSpec `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

type pod struct {
	migration.Meta
	Spec podSpec `json:"spec"`
}

type podSpec struct {
	NodeSelector map[string]string `json:"nodeSelector"`
	Affinity     *corev1.Affinity  `json:"affinity"`
	Containers   []struct {
		Name string          `json:"name"`
		Env  []corev1.EnvVar `json:"env"`
	} `json:"containers"`
}

type speaker struct {
	kind, name string
	spec       *podSpec
}

// Objects are the kube-vip objects of a cluster.
type Objects struct {
	configMaps []configMap
	speakers   []speaker
}

// Read parses a stream of YAML or JSON objects; kinds other than ConfigMap, DaemonSet and Pod are an error.
func Read(r io.Reader) (*Objects, error) {
	objects := &Objects{}
	if err := migration.Read(r, "kube-vip", objects.add); err != nil {
		return nil, err
	}
	return objects, nil
}

func (o *Objects) add(object migration.Object) error {
	switch {
	case object.APIVersion == "v1" && object.Kind == "ConfigMap":
		return migration.Decode(object, &o.configMaps, nil)
	case object.APIVersion == "apps/v1" && object.Kind == "DaemonSet":
		var found []workload
		if err := migration.Decode(object, &found, nil); err != nil {
			return err
		}
		o.speakers = append(o.speakers, speaker{kind: object.Kind, name: found[0].Metadata.Name, spec: &found[0].Spec.Template.Spec})
		return nil
	case object.APIVersion == "v1" && object.Kind == "Pod":
		var found []pod
		if err := migration.Decode(object, &found, nil); err != nil {
			return err
		}
		o.speakers = append(o.speakers, speaker{kind: object.Kind, name: found[0].Metadata.Name, spec: &found[0].Spec})
		return nil
	default:
		return object.ErrForeign()
	}
}
