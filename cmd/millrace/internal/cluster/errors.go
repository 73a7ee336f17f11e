// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
)

// Errors of reading a cluster.
var (
	ErrNoConfig     = errors.New("no cluster is configured")
	ErrUnreachable  = apierror.ErrUnreachable
	ErrNotInstalled = apierror.ErrNotInstalled
	ErrForbidden    = apierror.ErrForbidden
)

func explainConfig(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return fmt.Errorf("%w: there is no kubeconfig; set KUBECONFIG or --kubeconfig", ErrNoConfig)
	}
	return fmt.Errorf("%w: %w; see --kubeconfig and --context", ErrNoConfig, err)
}

func (c Config) explain(host string, err error) error {
	return apierror.Explain(err, apierror.Request{Host: host, Namespace: c.Namespace})
}

// explainServer suggests a similar name if the named object does not exist.
func (c Config) explainServer(ctx context.Context, host string, err error) error {
	return apierror.Explain(err, apierror.Request{
		Host: host, Namespace: c.Namespace, Names: func(resource schema.GroupResource) []string { return c.names(ctx, resource) },
	})
}

func (c Config) names(ctx context.Context, resource schema.GroupResource) []string {
	_, mapper, err := kinds()
	if err != nil {
		return nil
	}
	kind, err := mapper.KindFor(resource.WithVersion(""))
	if err != nil {
		return nil
	}
	_, reader, err := c.client()
	if err != nil {
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	if err := reader.List(ctx, list); err != nil {
		return nil
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}
