// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package migrate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const (
	// nativeMode is MetalLB's native BGP, without IPv6.
	nativeMode = "native"
	// frrMode has an FRR per speaker, which reloads its configuration.
	frrMode = "frr"
	// frrK8sMode has an FRR per node in a pod of frr-k8s.
	frrK8sMode = "frr-k8s"
)

const announcedByFRR = `
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: both, namespace: metallb-system}
spec: {ipAddressPools: [both]}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: router1-v6, namespace: metallb-system}
spec: {myASN: 64513, peerASN: 64512, peerAddress: "2001:db8:0:1::101", holdTime: 9s}
`

// TestMetalLBFRR is TestMetalLB in mode frr, with this machine's FRR and dual-stack Services. Each node
// moves with both sessions.
func TestMetalLBFRR(t *testing.T) {
	begin(t, frrMode)
	must(t, cluster.Apply(t.Context(), metalLBObjects))
	must(t, cluster.Apply(t.Context(), announcedByFRR))
	must(t, cluster.Apply(t.Context(), twentyServices()))
	m := &move{given: givenAddresses(t), targets: announcedTargets(t, frrMode)}
	m.served(t)
	m.hold(t)

	m.take(t)
	m.there(t)
	m.back(t)
}

func (m *move) take(t *testing.T) {
	t.Helper()
	m.step(t, "Millrace takes packets", 0, few, func() {
		installMillrace(t)
		must(t, cluster.Apply(t.Context(), millrace(t, "migrate", "metallb", "--by-node", metalLBFile(t))))
		claimed(t, m.given)
	})
}

// there moves the nodes. No second session retains kube-proxy's connections.
func (m *move) there(t *testing.T) {
	t.Helper()
	m.step(t, "to Millrace", switchRequests, heldConnections, func() { t.Log(millrace(t, "migrate", "nodes")) })
	must(t, m.held.End())
}

// back moves the nodes back and uninstalls Millrace.
func (m *move) back(t *testing.T) {
	t.Helper()
	m.hold(t)
	m.step(t, "back to MetalLB", switchRequests, few, func() { t.Log(millrace(t, "migrate", "nodes", "--back")) })
	m.step(t, "kube-proxy takes packets", 0, few, func() { serviceProxy(t, "takes") })
	must(t, m.held.End())

	m.hold(t)
	m.step(t, "Millrace goes", 0, few, func() { uninstall(t, m.given) })
	must(t, m.held.End())
}

// hostPaths are mounted for FRR and its reload script.
var hostPaths = map[string]string{
	"usr": "/usr", "bin": "/bin", "sbin": "/sbin", "lib": "/lib", "lib64": "/lib64",
	"passwd": "/etc/passwd", "group": "/etc/group",
}

// frrImage is FRR's image in MetalLB's manifest. The PAM file replaces Debian's, which lacks accounts, so
// that vtysh prints no errors.
const (
	frrImage    = "quay.io/frrouting/frr:9.1.0"
	frrPAMFile  = "/etc/pam.d/frr"
	frrPAMRules = "auth sufficient pam_permit.so\naccount sufficient pam_permit.so\n"
)

// withDebiansFRR makes the manifest's DaemonSets run this machine's FRR instead of an image.
func withDebiansFRR(manifest string) (string, error) {
	documents := strings.Split(manifest, "\n---\n")
	replaced := 0
	for at, document := range documents {
		if !strings.Contains(document, "\nkind: DaemonSet\n") {
			continue
		}
		var set appsv1.DaemonSet
		if err := yaml.Unmarshal([]byte(document), &set); err != nil {
			return "", err
		}
		if !useDebiansFRR(&set.Spec.Template.Spec) {
			continue
		}
		replaced++
		changed, err := yaml.Marshal(&set)
		if err != nil {
			return "", err
		}
		documents[at] = string(changed)
	}
	if replaced != 1 {
		return "", fmt.Errorf("%d DaemonSets in the manifest of MetalLB use %s, want 1", replaced, frrImage)
	}
	return strings.Join(documents, "\n---\n"), nil
}

// useDebiansFRR reports whether the pod was changed. It removes proxies for metrics over TLS.
func useDebiansFRR(pod *corev1.PodSpec) bool {
	pod.Containers = slices.DeleteFunc(pod.Containers, func(c corev1.Container) bool { return strings.HasPrefix(c.Name, "kube-rbac-proxy") })
	changed := false
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			if containers[i].Image == frrImage || len(containers[i].Command) > 0 && containers[i].Command[0] == "/bin/sh" {
				runOnHostFiles(&containers[i])
				changed = true
			}
		}
	}
	for name, path := range hostPaths {
		pod.Volumes = append(pod.Volumes, corev1.Volume{
			Name: "host-" + name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}},
		})
	}
	return changed
}

// runOnHostFiles mounts this machine's files and replaces paths of FRR's image.
func runOnHostFiles(container *corev1.Container) {
	for i, argument := range container.Command {
		argument = strings.ReplaceAll(argument, "/sbin/tini -- /usr/lib/frr/docker-start", "/usr/lib/frr/frrinit.sh start")
		container.Command[i] = strings.ReplaceAll(argument, "/bin/sh", "/bin/bash")
	}
	for name, path := range hostPaths {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "host-" + name, MountPath: path, ReadOnly: true})
	}
}
