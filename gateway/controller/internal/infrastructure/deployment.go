// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	proxyUser = 65532
	// gracePeriod is the time in seconds for a proxy to drain; see cmd/lbproxy.
	gracePeriod = 60
	// tokenSeconds is the token lifetime. The kubelet renews it at 80 percent.
	tokenSeconds = 3600
	defaultMode  = 0o444
)

const (
	volumeCA    = "controller-ca"
	volumeToken = "token"
	volumeStore = "configuration"
	portAdmin   = "admin"
)

// deployment runs unprivileged pods without API permissions.
func (p planner) deployment() Object {
	replicas, none, one := p.replicas(), intstr.FromInt32(0), intstr.FromInt32(1)
	deployment := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: p.metadata(),
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: p.selector()},
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxUnavailable: &none, MaxSurge: &one,
				},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: p.labels(), Annotations: p.podAnnotations()},
				Spec:       p.pod(),
			},
		},
	}
	if p.scales() {
		// The autoscaler sets the replicas.
		deployment.Spec.Replicas = nil
	}
	return deployment
}

func (p planner) podAnnotations() map[string]string {
	if len(p.proxy.Annotations) == 0 {
		return nil
	}
	return p.proxy.Annotations
}

func (p planner) pod() corev1.PodSpec {
	yes, no := true, false
	user, grace := int64(proxyUser), int64(gracePeriod)
	return corev1.PodSpec{
		ServiceAccountName:            p.at.Name,
		AutomountServiceAccountToken:  &no,
		EnableServiceLinks:            &no,
		TerminationGracePeriodSeconds: &grace,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, FSGroup: &user,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		// Spread the pods of a rollout on their own, because the old ones terminate.
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector:  &metav1.LabelSelector{MatchLabels: p.selector()},
			MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey},
		}},
		ImagePullSecrets: p.pullSecrets(),
		NodeSelector:     p.proxy.Parameters.NodeSelector,
		Tolerations:      p.proxy.Parameters.Tolerations,
		Containers:       []corev1.Container{p.container()},
		Volumes:          p.volumes(),
	}
}

func (p planner) pullSecrets() []corev1.LocalObjectReference {
	if secrets := p.proxy.Parameters.PullSecrets; secrets != nil {
		return secrets
	}
	return p.settings.PullSecrets
}

func (p planner) container() corev1.Container {
	yes, no := true, false
	return corev1.Container{
		Name:            "proxy",
		Image:           p.settings.Image,
		ImagePullPolicy: p.settings.PullPolicy,
		Args:            p.arguments(),
		// Ports of listeners are omitted: a new listener must not roll the Deployment.
		Ports: []corev1.ContainerPort{{Name: portAdmin, ContainerPort: AdminPort, Protocol: corev1.ProtocolTCP}},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:  probe("/readyz"),
			PeriodSeconds: 1, FailureThreshold: 2, TimeoutSeconds: 2,
		},
		LivenessProbe: &corev1.Probe{
			ProbeHandler:  probe("/healthz"),
			PeriodSeconds: 10, FailureThreshold: 6, TimeoutSeconds: 5,
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU: p.settings.CPU, corev1.ResourceMemory: p.settings.Memory,
			},
			Limits: corev1.ResourceList{corev1.ResourceMemory: p.settings.MemoryLimit},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: volumeCA, MountPath: caDirectory, ReadOnly: true},
			{Name: volumeToken, MountPath: tokenDirectory, ReadOnly: true},
			{Name: volumeStore, MountPath: storeDirectory},
		},
	}
}

// arguments omits defaults, because a new argument rolls the Deployment.
func (p planner) arguments() []string {
	arguments := []string{
		"--controller=" + p.settings.Controller,
		"--controller-name=" + p.settings.ServerName,
		"--controller-ca=" + caDirectory + "/" + CAKey,
		"--token=" + tokenDirectory + "/token",
		"--store=" + storeDirectory + "/configuration",
		"--admin-bind-address=:" + strconv.Itoa(AdminPort),
	}
	parameters := p.proxy.Parameters
	if parameters.ResponseTimeout != 0 {
		arguments = append(arguments, "--response-timeout="+parameters.ResponseTimeout.String())
	}
	if parameters.AccessLog {
		arguments = append(arguments, "--access-log")
	}
	if parameters.RouteMetrics {
		arguments = append(arguments, "--route-metrics")
	}
	if parameters.TracingEndpoint != "" {
		arguments = append(arguments, "--tracing-endpoint="+parameters.TracingEndpoint)
		if parameters.TracingRatio != "" {
			arguments = append(arguments, "--tracing-ratio="+parameters.TracingRatio)
		}
	}
	return arguments
}

func probe(path string) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: path, Port: intstr.FromString(portAdmin), Scheme: corev1.URISchemeHTTPS,
	}}
}

// volumes keeps the configuration in memory, because it contains private keys.
func (p planner) volumes() []corev1.Volume {
	seconds, mode := int64(tokenSeconds), int32(defaultMode)
	return []corev1.Volume{
		{Name: volumeCA, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: p.at.Name}, DefaultMode: &mode,
		}}},
		{Name: volumeToken, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: &mode,
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: Audience, ExpirationSeconds: &seconds, Path: "token",
			}}},
		}}},
		{Name: volumeStore, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory,
		}}},
	}
}
