// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// helmUninstalling is the status of a release when Helm runs the pre-delete hooks.
	helmUninstalling = "uninstalling"
	// helmReleaseAnnotation is an annotation that Helm sets on each object that it installs, except hooks.
	helmReleaseAnnotation = "meta.helm.sh/release-name"
)

// helmRelease identifies the Helm release whose hook runs the program.
type helmRelease struct {
	namespace, name string
	// first and last are the revisions between which the hook may read records.
	first, last int
}

// parseHelmRelease parses the flags of the hooks: NAMESPACE/NAME and FIRST-LAST.
func parseHelmRelease(release, revisions string) (*helmRelease, error) {
	r := &helmRelease{}
	var named bool
	if r.namespace, r.name, named = strings.Cut(release, "/"); !named || r.namespace == "" || r.name == "" {
		return nil, fmt.Errorf("--helm-release=%s: must be NAMESPACE/NAME", release)
	}
	if n, err := fmt.Sscanf(revisions, "%d-%d", &r.first, &r.last); err != nil || n != 2 || r.first < 1 || r.last < r.first {
		return nil, fmt.Errorf("--helm-revisions=%s: must be FIRST-LAST", revisions)
	}
	return r, nil
}

type helmRecord struct {
	revision int
	// status is the status of the release, such as deployed, superseded or uninstalling.
	status string
}

// verdict reports whether Helm is uninstalling the release, and otherwise why the hook does nothing. A
// missing record (nil) is an error if Helm installed the workloads.
func (r *helmRelease) verdict(record *helmRecord, installedByHelm bool) (bool, string, error) {
	switch {
	case record == nil && installedByHelm:
		return false, "", fmt.Errorf("namespace %s has no record of revisions %d to %d of the Helm release %s, "+
			"which installed Millrace, so nothing was changed: upgrade the release (with Flux, set spec.storageNamespace to %s); "+
			"if HELM_DRIVER is neither secret nor configmap, uninstall in the order of docs/install.md and then with --no-hooks",
			r.namespace, r.first, r.last, r.name, r.namespace)
	case record == nil:
		return false, fmt.Sprintf("there is no Helm release %s in namespace %s", r.name, r.namespace), nil
	case record.revision == r.last:
		return false, "", fmt.Errorf("revision %d of the Helm release %s/%s is the last revision that this hook may read, and may not be "+
			"the newest, so nothing was changed: upgrade the release and uninstall again", record.revision, r.namespace, r.name)
	case record.status != helmUninstalling:
		return false, fmt.Sprintf("revision %d of the Helm release %s/%s is %s, not %s",
			record.revision, r.namespace, r.name, record.status, helmUninstalling), nil
	}
	return true, "", nil
}

// newest returns the newest record of the release from Secrets, or else from ConfigMaps. It returns nil if
// there is none.
func (r *helmRelease) newest(ctx context.Context, client kubernetes.Interface) (*helmRecord, error) {
	secrets, configMaps := client.CoreV1().Secrets(r.namespace), client.CoreV1().ConfigMaps(r.namespace)
	for _, kind := range []func(string) (metav1.Object, error){
		func(name string) (metav1.Object, error) { return secrets.Get(ctx, name, metav1.GetOptions{}) },
		func(name string) (metav1.Object, error) { return configMaps.Get(ctx, name, metav1.GetOptions{}) },
	} {
		for revision := r.last; revision >= r.first; revision-- {
			name := fmt.Sprintf("sh.helm.release.v1.%s.v%d", r.name, revision)
			object, err := kind(name)
			switch {
			case apierrors.IsNotFound(err):
			case err != nil:
				return nil, fmt.Errorf("read the Helm record %s/%s: %w", r.namespace, name, err)
			default:
				return &helmRecord{revision: revision, status: object.GetLabels()["status"]}, nil
			}
		}
	}
	return nil, nil
}

// isUninstalling reports whether the release of the hook is being uninstalled, and prints the reason if not.
// It returns true if an administrator runs the program without a release.
func (u uninstallation) isUninstalling(ctx context.Context) (bool, error) {
	if u.helm == nil {
		return true, nil
	}
	record, err := u.helm.newest(ctx, u.client)
	if err != nil {
		return false, err
	}
	installedByHelm := false
	if record == nil {
		if installedByHelm, err = u.installedByHelm(ctx); err != nil {
			return false, err
		}
	}
	acts, why, err := u.helm.verdict(record, installedByHelm)
	if err == nil && !acts {
		fmt.Fprintf(u.out, "nothing to do: %s; pre-delete hooks only act for `helm uninstall`\n", why)
	}
	return acts, err
}

func (u uninstallation) installedByHelm(ctx context.Context) (bool, error) {
	set, err := u.client.AppsV1().DaemonSets(u.namespace).Get(ctx, agents, metav1.GetOptions{})
	if err == nil && set.Annotations[helmReleaseAnnotation] != "" {
		return true, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read DaemonSet %s: %w", agents, err)
	}
	deployment, err := u.client.AppsV1().Deployments(u.namespace).Get(ctx, operators, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read Deployment %s: %w", operators, err)
	}
	return err == nil && deployment.Annotations[helmReleaseAnnotation] != "", nil
}
