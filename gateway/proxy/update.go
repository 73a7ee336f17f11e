// SPDX-License-Identifier: Apache-2.0

package proxy

import "github.com/millrace-lb/millrace/gateway/resource"

// Update leads from one version of the configuration to the next.
type Update struct {
	Version string
	// Whole says that Resources are all there is. Otherwise they take the place of those
	// with their names, or come to them, and those in Removed go.
	Whole     bool
	Resources []*resource.Resource
	Removed   []string
}
