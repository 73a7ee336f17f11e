// SPDX-License-Identifier: Apache-2.0

package plan

import "github.com/millrace-lb/millrace/gateway/proxy/internal/credentials"

// CheckUsers validates an htpasswd file. The error contains line numbers but no content.
func CheckUsers(htpasswd []byte) error {
	_, err := credentials.Parse(htpasswd)
	return err
}
