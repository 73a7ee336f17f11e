// SPDX-License-Identifier: Apache-2.0

// Package authentication maps a proxy's service account token to the proxy's owner.
//
// The API server returns the token's pod and service account, and the compilation their owner, which no edit of
// a pod can change.
package authentication

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/distribution/server"
)

const (
	claimPodName = "authentication.kubernetes.io/pod-name"
	claimPodUID  = "authentication.kubernetes.io/pod-uid"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// Fleet is the set of proxies of one owner.
type Fleet struct {
	// Owner is the infrastructure.Key of the owner.
	Owner    string
	Selector map[string]string
}

// Authenticator authenticates proxies by TokenReview.
type Authenticator struct {
	Reviews client.Writer
	// Cached is read first, then Live, because a pod may be newer than the cache.
	Cached, Live client.Reader
	// Fleets returns the owner whose proxies run as the service account.
	Fleets func(serviceAccount types.NamespacedName) (Fleet, bool)
}

// Authenticate implements server.Authenticate.
func (a *Authenticator) Authenticate(ctx context.Context, token string) (server.Identity, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{
		Token: token, Audiences: []string{infrastructure.Audience},
	}}
	if err := a.Reviews.Create(ctx, review); err != nil {
		return server.Identity{}, errors.New("the API server cannot review it now")
	}
	// An API server without support for audiences leaves the field empty.
	if !review.Status.Authenticated || !slices.Contains(review.Status.Audiences, infrastructure.Audience) {
		return server.Identity{}, fmt.Errorf("the API server does not accept it for the audience %q", infrastructure.Audience)
	}
	user := review.Status.User
	namespace, name, err := serviceaccount.SplitUsername(user.Username)
	if err != nil {
		return server.Identity{}, fmt.Errorf("%q is not a service account", user.Username)
	}
	account := types.NamespacedName{Namespace: namespace, Name: name}
	fleet, known := a.Fleets(account)
	if !known {
		return server.Identity{}, fmt.Errorf("the service account %s does not run proxies", account)
	}
	pod := types.NamespacedName{Namespace: namespace, Name: claim(user, claimPodName)}
	if err := a.checkPod(ctx, pod, types.UID(claim(user, claimPodUID)), fleet); err != nil {
		return server.Identity{}, err
	}
	return server.Identity{Owner: fleet.Owner, Pod: pod.String()}, nil
}

// checkPod returns an error if the pod is deleted or not of the owner's Deployment.
func (a *Authenticator) checkPod(ctx context.Context, name types.NamespacedName, uid types.UID, fleet Fleet) error {
	if name.Name == "" || uid == "" {
		return errors.New("it is not bound to a pod")
	}
	pod := &metav1.PartialObjectMetadata{}
	pod.SetGroupVersionKind(podKind)
	err := a.Cached.Get(ctx, name, pod)
	if apierrors.IsNotFound(err) || err == nil && pod.UID != uid {
		err = a.Live.Get(ctx, name, pod)
	}
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no pod %s", name)
	case err != nil:
		return fmt.Errorf("the pod %s cannot be read now", name)
	case pod.UID != uid:
		return fmt.Errorf("it belongs to a previous pod %s", name)
	case !labels.SelectorFromSet(fleet.Selector).Matches(labels.Set(pod.Labels)):
		return fmt.Errorf("the pod %s does not belong to %s", name, fleet.Owner)
	}
	return nil
}

func claim(user authenticationv1.UserInfo, name string) string {
	if values := user.Extra[name]; len(values) == 1 {
		return values[0]
	}
	return ""
}
