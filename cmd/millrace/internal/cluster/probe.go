// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Probe returns an error if the API server does not answer a request for one VIPPool within limit; NotFound
// and Forbidden are answers. Watches do not detect a server that hangs. The kubeconfig is read each time,
// because credentials in it are replaced.
func Probe(ctx context.Context, config Config, limit time.Duration) error {
	restConfig, reader, err := config.client()
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = reader.List(limited, &millracev1beta1.VIPPoolList{}, client.Limit(1))
	var network *url.Error
	switch {
	case err == nil, apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		err = fmt.Errorf("%w within %s", errNoAnswer, limit)
	case errors.As(err, &network):
		err = network.Err
	}
	return fmt.Errorf("list vippools at %s: %w", restConfig.Host, err)
}

var errNoAnswer = errors.New("no answer")
