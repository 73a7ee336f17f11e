// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/millrace-lb/millrace/gateway/proxy/internal/extauth"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// CheckAuthorization validates an external authorization.
func CheckAuthorization(of *resource.ExternalAuthorization) error {
	_, err := extauth.New(of)
	return err
}
