// SPDX-License-Identifier: Apache-2.0

package proxy

import "github.com/millrace-lb/millrace/gateway/resource"

// Update is the difference between two versions of the configuration.
type Update struct {
	Version string
	// Whole marks Resources as the complete configuration. Otherwise they are added or replaced by name.
	Whole     bool
	Resources []*resource.Resource
	Removed   []string
}
