// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Server is a group of pods of a component with the same image.
type Server struct {
	Component string `json:"component"`
	// Version is the version that agents report; for other components the tag or digest of the image.
	Version string `json:"version,omitempty"`
	Image   string `json:"image"`
	Pods    int    `json:"pods"`
}

// Servers counts the servers among pods, sorted by component, version and image.
func Servers(pods []corev1.Pod, reports []millracev1beta1.LBNodeReport) []Server {
	reported := map[string]string{}
	for i := range reports {
		reported[reports[i].Name] = reports[i].Status.Version
	}
	counts := map[Server]int{}
	for i := range pods {
		pod := &pods[i]
		name := component(pod)
		if name == "" || len(pod.Spec.Containers) == 0 {
			continue
		}
		server := Server{Component: name, Image: pod.Spec.Containers[0].Image}
		server.Version = imageVersion(server.Image)
		if name == "agent" {
			server.Version = cmp.Or(reported[pod.Spec.NodeName], server.Version)
		}
		counts[server]++
	}
	servers := make([]Server, 0, len(counts))
	for server, pods := range counts {
		server.Pods = pods
		servers = append(servers, server)
	}
	slices.SortFunc(servers, func(a, b Server) int {
		return cmp.Or(cmp.Compare(a.Component, b.Component), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Image, b.Image))
	})
	return servers
}

func imageVersion(image string) string {
	name, digest, _ := strings.Cut(image, "@")
	// A colon before the last slash separates the registry's port.
	_, tag, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	return cmp.Or(tag, digest)
}
