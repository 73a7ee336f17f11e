// SPDX-License-Identifier: Apache-2.0

package proxy

import "github.com/millrace-lb/millrace/gateway/resource"

// Update is the difference between two versions of the configuration.
type Update struct {
	Version string
	// Whole means that Resources are the complete configuration. Otherwise they are added or replaced by
	// name, and those in Removed are deleted.
	Whole     bool
	Resources []*resource.Resource
	Removed   []string
}
