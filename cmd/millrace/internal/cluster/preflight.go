// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilwait "k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/coexistence"
)

// Trial is a DaemonSet in a temporary namespace that checks the nodes before Millrace is installed.
type Trial struct {
	*Agents
	Addresses map[string][]string
	Missing   map[string]string

	clients   kubernetes.Interface
	namespace string
}

// ciliumNamespaces are the namespaces of Cilium's ConfigMap, depending on the installation.
var ciliumNamespaces = []string{"kube-system", "cilium", "cilium-system"}

// ReadCoexistence reads the workloads and settings of other load balancers.
func ReadCoexistence(ctx context.Context, config Config) (*coexistence.Cluster, error) {
	restConfig, clients, err := config.clients()
	if err != nil {
		return nil, err
	}
	found := &coexistence.Cluster{}
	version, err := clients.Discovery().ServerVersion()
	if err != nil {
		return nil, config.explain(restConfig.Host, err)
	}
	found.Server = version.GitVersion
	nodes, err := clients.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, config.explain(restConfig.Host, err)
	}
	for i := range nodes.Items {
		found.Kubelets = append(found.Kubelets, nodes.Items[i].Status.NodeInfo.KubeletVersion)
	}
	sets, err := clients.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, config.explain(restConfig.Host, err)
	}
	for i := range sets.Items {
		found.Workloads = append(found.Workloads, workloadOf(&sets.Items[i].ObjectMeta))
	}
	deployments, err := clients.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, config.explain(restConfig.Host, err)
	}
	for i := range deployments.Items {
		found.Workloads = append(found.Workloads, workloadOf(&deployments.Items[i].ObjectMeta))
	}
	for _, namespace := range ciliumNamespaces {
		settings, err := clients.CoreV1().ConfigMaps(namespace).Get(ctx, "cilium-config", metav1.GetOptions{})
		if err == nil {
			found.Cilium = settings.Data
		} else if !apierrors.IsNotFound(err) {
			return nil, config.explain(restConfig.Host, err)
		}
	}
	return found, nil
}

func workloadOf(object *metav1.ObjectMeta) coexistence.Workload {
	return coexistence.Workload{Namespace: object.Namespace, Name: object.Name, Labels: object.Labels}
}

func (c Config) clients() (*rest.Config, kubernetes.Interface, error) {
	restConfig, err := c.rest()
	if err != nil {
		return nil, nil, explainConfig(err)
	}
	clients, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("create client for %s: %w", restConfig.Host, err)
	}
	return restConfig, clients, nil
}

const (
	trialName = "millrace-preflight"
	// pollInterval is the polling interval of pods, podTimeout their time limit.
	pollInterval = 500 * time.Millisecond
	podTimeout   = 90 * time.Second
)

// TrialImage is the image of a trial.
type TrialImage struct {
	Name string
	// PullSecrets of its registry are copied into the trial's namespace.
	PullSecrets []types.NamespacedName
}

// StartTrial waits until the DaemonSet runs. The caller must call Remove, even after an error.
func StartTrial(ctx context.Context, config Config, image TrialImage) (*Trial, error) {
	restConfig, clients, err := config.clients()
	if err != nil {
		return nil, err
	}
	trial := &Trial{clients: clients, Agents: &Agents{config: restConfig, pods: map[string]*corev1.Pod{}}}
	secrets, err := readPullSecrets(ctx, clients, image.PullSecrets)
	if err != nil {
		return trial, err
	}
	namespace, err := clients.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: trialName + "-",
		// The pods use the host's network and BPF file system.
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged", "app.kubernetes.io/name": trialName},
	}}, metav1.CreateOptions{})
	if err != nil {
		return trial, config.explainTrial(restConfig.Host, err)
	}
	trial.namespace = namespace.Name
	for i := range secrets {
		if _, err := clients.CoreV1().Secrets(trial.namespace).Create(ctx, &secrets[i], metav1.CreateOptions{}); err != nil {
			return trial, config.explainTrial(restConfig.Host, err)
		}
	}
	if _, err := clients.AppsV1().DaemonSets(trial.namespace).Create(ctx, trialSet(image.Name, secrets), metav1.CreateOptions{}); err != nil {
		return trial, config.explainTrial(restConfig.Host, err)
	}
	return trial, trial.await(ctx)
}

// readPullSecrets gives the copies unique names.
func readPullSecrets(ctx context.Context, clients kubernetes.Interface, names []types.NamespacedName) ([]corev1.Secret, error) {
	var copies []corev1.Secret
	for i, name := range names {
		found, err := clients.CoreV1().Secrets(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read the pull Secret %s: %w", name, err)
		}
		if found.Type != corev1.SecretTypeDockerConfigJson && found.Type != corev1.SecretTypeDockercfg {
			return nil, fmt.Errorf("the pull Secret %s has type %s, want %s: "+
				"create it with `kubectl create secret docker-registry`", name, found.Type, corev1.SecretTypeDockerConfigJson)
		}
		copies = append(copies, corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pull-%d", i)}, Type: found.Type, Data: found.Data,
		})
	}
	return copies, nil
}

func (c Config) explainTrial(host string, err error) error {
	err = c.explain(host, err)
	if errors.Is(err, ErrForbidden) {
		return fmt.Errorf("%w; preflight needs to create a namespace and a DaemonSet in it, as the installation does", err)
	}
	return err
}

func (t *Trial) await(ctx context.Context) error {
	err := utilwait.PollUntilContextTimeout(ctx, pollInterval, podTimeout, true, func(ctx context.Context) (bool, error) {
		nodes, err := t.clients.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: corev1.LabelOSStable + "!=windows"})
		if err != nil {
			return false, nil //nolint:nilerr // It is tried again.
		}
		pods, err := t.clients.CoreV1().Pods(t.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil //nolint:nilerr // It is tried again.
		}
		t.update(nodes.Items, pods.Items)
		return len(t.Missing) == 0 && len(t.pods) > 0, nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(t.pods) == 0 {
		for node, why := range t.Missing {
			return fmt.Errorf("no pod runs in namespace %s, for example on %s: %s", t.namespace, node, why)
		}
		return fmt.Errorf("no pod runs in namespace %s: %w", t.namespace, err)
	}
	return nil
}

func (t *Trial) update(nodes []corev1.Node, pods []corev1.Pod) {
	t.pods, t.Addresses, t.Missing = map[string]*corev1.Pod{}, map[string][]string{}, map[string]string{}
	for i := range nodes {
		t.Missing[nodes[i].Name] = "it has no pod"
	}
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName == "" {
			continue
		}
		t.Missing[pod.Spec.NodeName] = podFailure(pod)
		if len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Running != nil {
			delete(t.Missing, pod.Spec.NodeName)
			t.pods[pod.Spec.NodeName] = pod
		}
	}
	for i := range nodes {
		if t.pods[nodes[i].Name] == nil {
			continue
		}
		for _, address := range nodes[i].Status.Addresses {
			if address.Type == corev1.NodeInternalIP {
				t.Addresses[nodes[i].Name] = append(t.Addresses[nodes[i].Name], address.Address)
			}
		}
	}
}

func podFailure(pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses {
		if ended := status.LastTerminationState.Terminated; ended != nil {
			return fmt.Sprintf("it exited with code %d: %s", ended.ExitCode, ended.Message)
		}
		if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "" {
			return fmt.Sprintf("%s: %s", waiting.Reason, waiting.Message)
		}
		if ended := status.State.Terminated; ended != nil {
			return fmt.Sprintf("it exited with code %d: %s", ended.ExitCode, ended.Message)
		}
	}
	return fmt.Sprintf("its pod is %s", pod.Status.Phase)
}

// Remove deletes the trial's namespace, and waits until it is gone.
func (t *Trial) Remove(ctx context.Context) error {
	if t == nil || t.namespace == "" {
		return nil
	}
	namespaces := t.clients.CoreV1().Namespaces()
	err := namespaces.Delete(ctx, t.namespace, metav1.DeleteOptions{})
	if err == nil {
		err = utilwait.PollUntilContextTimeout(ctx, pollInterval, time.Minute, true, func(ctx context.Context) (bool, error) {
			_, err := namespaces.Get(ctx, t.namespace, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the namespace of the checks: %w; run `kubectl delete namespace %s`", err, t.namespace)
	}
	return nil
}

// trialSet returns a DaemonSet whose only privilege is the host's network.
func trialSet(image string, pullSecrets []corev1.Secret) *appsv1.DaemonSet {
	var pull []corev1.LocalObjectReference
	for i := range pullSecrets {
		pull = append(pull, corev1.LocalObjectReference{Name: pullSecrets[i].Name})
	}
	yes, no, user, grace := true, false, int64(65532), int64(1)
	all := map[string]string{"app.kubernetes.io/name": trialName}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: trialName, Labels: all},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: all},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: all},
				Spec: corev1.PodSpec{
					HostNetwork: true, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &grace, EnableServiceLinks: &no,
					ImagePullSecrets: pull,
					NodeSelector:     map[string]string{corev1.LabelOSStable: "linux"},
					Tolerations:      []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					SecurityContext: &corev1.PodSecurityContext{
						SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
						// Only root's group may read the list of iptables-legacy's tables.
						SupplementalGroups: []int64{0},
					},
					Containers: []corev1.Container{{
						Name: agentContainer, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
						Command: []string{"/lbagent", "preflight", "--answer"}, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
						Env: []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{
							FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"},
						}}},
						SecurityContext: &corev1.SecurityContext{
							RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
							Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
						},
						VolumeMounts: []corev1.VolumeMount{{Name: "bpf", MountPath: "/sys/fs/bpf", ReadOnly: true}},
					}},
					Volumes: []corev1.Volume{{Name: "bpf", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/sys/fs/bpf"}}}},
				},
			},
		},
	}
}
