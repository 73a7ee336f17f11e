// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
)

// Why a cluster could not be read.
var (
	ErrNoConfig     = errors.New("no cluster to read")
	ErrUnreachable  = errors.New("the API server does not answer")
	ErrNotInstalled = errors.New("Millrace is not installed in this cluster")
	ErrForbidden    = errors.New("not allowed")
)

func explainConfig(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return fmt.Errorf("%w: there is no kubeconfig; set KUBECONFIG or give --kubeconfig", ErrNoConfig)
	}
	return fmt.Errorf("%w: %w; see --kubeconfig and --context", ErrNoConfig, err)
}

// explain turns what a request met into one sentence that says what to do.
func explain(host string, err error) error {
	var network *url.Error
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %s has no resource of millrace.io/v1beta1; install it with: kubectl apply --server-side -k config/default", ErrNotInstalled, host)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %w; ClusterRole millrace-viewer, and Role millrace-viewer in the namespace of Millrace, have what is needed", ErrForbidden, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: %s does not accept the credentials of this context: %w", ErrForbidden, host, err)
	case errors.As(err, &network):
		return fmt.Errorf("%w at %s: %w; see --kubeconfig and --context", ErrUnreachable, host, network.Err)
	default:
		return fmt.Errorf("read from %s: %w", host, err)
	}
}
