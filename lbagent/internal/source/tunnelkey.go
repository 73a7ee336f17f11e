// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func onlyTunnelKey(options *metav1.ListOptions) {
	options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, tunnelkey.SecretName).String()
}

func (s *Source) tunnelSecret() model.TunnelSecret {
	secrets := list[*corev1.Secret](s.tunnelKey)
	if len(secrets) == 0 {
		return model.TunnelSecret{}
	}
	state, err := tunnelkey.Parse(secrets[0].Data)
	return model.TunnelSecret{State: state, Err: err}
}

// TunnelKey reads the Secret before the informers run.
func (c *Clients) TunnelKey(ctx context.Context) (*tunnelkey.State, error) {
	secret := &corev1.Secret{}
	err := c.Core.Get().Namespace(tunnelkey.Namespace).Resource("secrets").Name(tunnelkey.SecretName).Do(ctx).Into(secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("Secret %s/%s, which the operator creates, does not exist", tunnelkey.Namespace, tunnelkey.SecretName)
	case err != nil:
		return nil, fmt.Errorf("read Secret %s/%s: %w", tunnelkey.Namespace, tunnelkey.SecretName, err)
	}
	state, err := tunnelkey.Parse(secret.Data)
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s: %w", tunnelkey.Namespace, tunnelkey.SecretName, err)
	}
	return state, nil
}
