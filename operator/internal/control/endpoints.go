// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"

	"go4.org/netipx"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/desired"
)

// slicesPerPage is the number of EndpointSlices per request; 500 have 50,000 endpoints at most.
const slicesPerPage = 500

// EndpointsWithin lists EndpointSlices from the API server and returns the endpoints within a set.
func EndpointsWithin(ctx context.Context, live client.Reader, set *netipx.IPSet) (found []desired.Endpoint, err error) {
	for next := ""; ; {
		list := &discoveryv1.EndpointSliceList{}
		if err := live.List(ctx, list, client.Limit(slicesPerPage), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("list EndpointSlices: %w", err)
		}
		for i := range list.Items {
			found = append(found, desired.EndpointsWithin(&list.Items[i], set)...)
		}
		if next = list.Continue; next == "" {
			return found, nil
		}
	}
}
