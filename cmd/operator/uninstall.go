// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/internal/program"
)

const (
	agents    = "millrace-agent"
	operators = "millrace-operator"
	cleanup   = "millrace-cleanup"
	// annotation on the operator's Deployment confirms that uninstalling removes the addresses from
	// Services. Chart values cannot confirm it, because a release whose uninstallation failed cannot be
	// upgraded. If the Deployment is already deleted, the annotation of the agents' DaemonSet counts; a
	// confirmed attempt copies it there.
	annotation = "millrace.io/release-services"
	// holdLabel is in the node selector of the chart's DaemonSet millrace-cleanup and on no node, so that the
	// DaemonSet has no pods. A hook removes it while Helm uninstalls the release. Never label a Node with it.
	holdLabel = "millrace.io/uninstalling"
)

// uninstallation implements the Helm hooks that run before objects are deleted.
type uninstallation struct {
	client    kubernetes.Interface
	namespace string
	// release removes the addresses of Services without a confirmation by annotation.
	release bool
	// helm is the release of the hook, or nil if an administrator runs the program.
	helm *helmRelease
	out  io.Writer
}

func runUninstall(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	u := uninstallation{out: stdout}
	flags := program.Flags("operator uninstall", stderr)
	flags.StringVar(&u.namespace, "namespace", "millrace-system", "namespace of the installation")
	await := flags.Bool("await-cleanup", false, "only start the DaemonSet "+cleanup+" and wait until all nodes are clean")
	release := flags.String("helm-release", "", "do nothing unless Helm is uninstalling this release, as NAMESPACE/NAME (default: always uninstall)")
	revisions := flags.String("helm-revisions", "1-50", "first and last revision of the release to read")
	flags.BoolVar(&u.release, "release-services", false, "remove addresses from Services without confirmation by annotation")
	timeout := flags.Duration("timeout", 4*time.Minute, "time limit")
	program.RegisterKubeconfig(flags, config.RegisterFlags)
	if done, err := program.Parse(flags, arguments, version, stdout); done || err != nil {
		return err
	}
	if *release != "" {
		var err error
		if u.helm, err = parseHelmRelease(*release, *revisions); err != nil {
			return err
		}
	}
	rest, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("configure the API client: %w: run in a cluster or set --kubeconfig", err)
	}
	// Up to helm-revisions records are read; the default limit is five requests per second.
	rest.QPS = -1
	if u.client, err = kubernetes.NewForConfig(rest); err != nil {
		return fmt.Errorf("create the API client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if acts, err := u.isUninstalling(ctx); err != nil || !acts {
		return err
	}
	if *await {
		return u.awaitCleanup(ctx)
	}
	return u.prepare(ctx)
}

// prepare releases the addresses of Services, and then stops the agents.
func (u uninstallation) prepare(ctx context.Context) error {
	services, err := u.servicesWithAddresses(ctx)
	if err != nil {
		return err
	}
	if len(services) > 0 {
		if err := u.checkConfirmed(ctx, services); err != nil {
			return err
		}
		// Stop the operator, which would assign the addresses again.
		if err := u.remove(ctx, operators, u.client.AppsV1().Deployments(u.namespace).Delete); err != nil {
			return err
		}
		for i := range services {
			if err := u.releaseService(ctx, &services[i]); err != nil {
				return err
			}
		}
		fmt.Fprintf(u.out, "removed the addresses of %d Services: %s\n", len(services), names(services))
	}
	return u.remove(ctx, agents, u.client.AppsV1().DaemonSets(u.namespace).Delete)
}

func (u uninstallation) checkConfirmed(ctx context.Context, services []corev1.Service) error {
	if u.release {
		return nil
	}
	have := fmt.Sprintf("%d Services have addresses of Millrace: %s", len(services), names(services))
	deployment, err := u.client.AppsV1().Deployments(u.namespace).Get(ctx, operators, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return u.checkConfirmedWithoutOperator(ctx, have)
	case err != nil:
		return fmt.Errorf("read Deployment %s: %w", operators, err)
	case deployment.Annotations[annotation] != "true":
		return fmt.Errorf("%s: delete them or change their type; or confirm the removal of the addresses: "+
			"kubectl -n %s annotate deployment %s %s=true; then uninstall again", have, u.namespace, operators, annotation)
	}
	return u.record(ctx)
}

// checkConfirmedWithoutOperator returns an error unless the removal of addresses was confirmed before the
// operator was deleted. have describes the Services with addresses.
func (u uninstallation) checkConfirmedWithoutOperator(ctx context.Context, have string) error {
	set, err := u.client.AppsV1().DaemonSets(u.namespace).Get(ctx, agents, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s, and Deployment %s and DaemonSet %s do not exist: install Millrace again and delete the Services; "+
			"or remove the addresses: operator uninstall --release-services", have, operators, agents)
	case err != nil:
		return fmt.Errorf("read DaemonSet %s: %w", agents, err)
	case set.Annotations[annotation] != "true":
		return fmt.Errorf("%s, and Deployment %s does not exist: restore it and delete the Services; or confirm the removal of the addresses: "+
			"kubectl -n %s annotate daemonset %s %s=true; then uninstall again", have, operators, u.namespace, agents, annotation)
	}
	fmt.Fprintf(u.out, "%s does not exist: continuing, because of the annotation %s of %s\n", operators, annotation, agents)
	return nil
}

// record copies the confirmation to the agents' DaemonSet, because the operator's Deployment is deleted
// first.
func (u uninstallation) record(ctx context.Context) error {
	patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: "true"}}}`, annotation)
	_, err := u.client.AppsV1().DaemonSets(u.namespace).Patch(ctx, agents, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotate DaemonSet %s with %s: %w", agents, annotation, err)
	}
	return nil
}

func (u uninstallation) servicesWithAddresses(ctx context.Context) ([]corev1.Service, error) {
	list, err := u.client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(service corev1.Service) bool {
		return !slices.Contains(service.Finalizers, millracev1beta1.Finalizer)
	}), nil
}

func names(services []corev1.Service) string {
	const most = 10
	var list []string
	for _, service := range services[:min(len(services), most)] {
		list = append(list, service.Namespace+"/"+service.Name)
	}
	if len(services) > most {
		list = append(list, "…")
	}
	return strings.Join(list, ", ")
}

// releaseService removes the addresses and finalizers of a Service, so that it can be deleted without an
// operator.
func (u uninstallation) releaseService(ctx context.Context, service *corev1.Service) error {
	services := u.client.CoreV1().Services(service.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		present, err := services.Get(ctx, service.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		present.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		if present, err = services.UpdateStatus(ctx, present, metav1.UpdateOptions{}); err != nil {
			return err
		}
		present.Finalizers = slices.DeleteFunc(present.Finalizers, func(name string) bool {
			return name == millracev1beta1.Finalizer || name == millracev1beta1.SharedFinalizer
		})
		_, err = services.Update(ctx, present, metav1.UpdateOptions{})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the address of Service %s/%s: %w", service.Namespace, service.Name, err)
	}
	return nil
}

// remove deletes a workload and waits until its pods are deleted.
func (u uninstallation) remove(ctx context.Context, name string, remove func(context.Context, string, metav1.DeleteOptions) error) error {
	foreground := metav1.DeletePropagationForeground
	err := remove(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	_, component, _ := strings.Cut(name, "-")
	var left []string
	err = u.poll(ctx, func(ctx context.Context) (bool, error) {
		pods, err := u.pods(ctx, component)
		left = left[:0]
		for _, pod := range pods {
			left = append(left, pod.Name+" on "+pod.Spec.NodeName)
		}
		return len(left) == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait until the pods of %s are deleted: %w: remaining: %s", name, err, strings.Join(left, ", "))
	}
	fmt.Fprintf(u.out, "%s is deleted\n", name)
	return nil
}

// awaitCleanup starts the cleanup pods and waits until they have cleaned each node.
func (u uninstallation) awaitCleanup(ctx context.Context) error {
	patch := fmt.Sprintf(`{"spec": {"template": {"spec": {"nodeSelector": {%q: null}}}}}`, holdLabel)
	_, err := u.client.AppsV1().DaemonSets(u.namespace).Patch(ctx, cleanup, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("remove the node selector %s of DaemonSet %s: %w", holdLabel, cleanup, err)
	}
	var unready []string
	err = u.poll(ctx, func(ctx context.Context) (bool, error) {
		set, err := u.client.AppsV1().DaemonSets(u.namespace).Get(ctx, cleanup, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		pods, err := u.pods(ctx, "cleanup")
		unready = unready[:0]
		for _, pod := range pods {
			if !slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
				return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
			}) {
				unready = append(unready, pod.Name+" on "+pod.Spec.NodeName)
			}
		}
		status := set.Status
		return status.ObservedGeneration >= set.Generation && status.NumberReady == status.DesiredNumberScheduled, err
	})
	if err != nil {
		return fmt.Errorf("wait until all nodes are clean: %w: not ready: %s; see the events of these pods", err, strings.Join(unready, ", "))
	}
	fmt.Fprintln(u.out, "all nodes are clean")
	return nil
}

func (u uninstallation) pods(ctx context.Context, component string) ([]corev1.Pod, error) {
	list, err := u.client.CoreV1().Pods(u.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=millrace,app.kubernetes.io/component=" + component,
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// poll calls check every second until it succeeds. Errors are returned only after the timeout, because the
// API server may be unavailable briefly.
func (u uninstallation) poll(ctx context.Context, check func(context.Context) (bool, error)) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		done, err := check(ctx)
		if err != nil {
			if ctx.Err() == nil {
				last = err
			}
			return false, nil
		}
		last = nil
		return done, nil
	})
	return errors.Join(err, last)
}
