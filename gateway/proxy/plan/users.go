// SPDX-License-Identifier: Apache-2.0

package plan

import "github.com/millrace-lb/millrace/gateway/proxy/internal/credentials"

// CheckUsers reports which lines of an htpasswd file a proxy does not take, by their numbers. It
// tells nothing of what they say.
func CheckUsers(htpasswd []byte) error {
	_, err := credentials.Parse(htpasswd)
	return err
}
