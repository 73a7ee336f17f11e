// SPDX-License-Identifier: Apache-2.0

package forwarding_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func TestTunnelKeysCheck(t *testing.T) {
	key := func(number uint8) forwarding.TunnelKey {
		return forwarding.TunnelKey{Number: number, Secret: [forwarding.TunnelSecretSize]byte{31: number + 1}}
	}
	type keys = []forwarding.TunnelKey
	for _, test := range []struct {
		name  string
		keys  forwarding.TunnelKeys
		wrong string
	}{
		{"none", forwarding.TunnelKeys{}, ""},
		{"accepted, not sent", forwarding.TunnelKeys{Accepted: keys{key(1)}}, ""},
		{"rotation", forwarding.TunnelKeys{Accepted: keys{key(4), key(1)}, Sending: 4, Required: true}, ""},
		{"lost rotation", forwarding.TunnelKeys{Accepted: keys{key(1), key(2), key(3)}, Sending: 1}, ""},
		{"four", forwarding.TunnelKeys{Accepted: keys{key(1), key(2), key(3), key(4)}}, "4 tunnel keys"},
		{"number 0", forwarding.TunnelKeys{Accepted: keys{key(0)}}, "number 0"},
		{"number 5", forwarding.TunnelKeys{Accepted: keys{key(5)}}, "number 5"},
		{"twice", forwarding.TunnelKeys{Accepted: keys{key(1), key(2), key(2)}}, "two tunnel keys"},
		{"zeros", forwarding.TunnelKeys{Accepted: keys{{Number: 1}}}, "secret of zeros"},
		{"sent, not accepted", forwarding.TunnelKeys{Accepted: keys{key(1)}, Sending: 2}, "not accepted"},
		{"required without a key", forwarding.TunnelKeys{Required: true}, "no tunnel key"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.keys.Check()
			if test.wrong == "" && err != nil || test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)) {
				t.Errorf("error %v, want %q", err, test.wrong)
			}
		})
	}
}

func TestTunnelKeyHidesItsSecret(t *testing.T) {
	secret := forwarding.TunnelKey{Number: 3, Secret: [forwarding.TunnelSecretSize]byte{0: 213, 31: 214}}
	for _, form := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(form, forwarding.TunnelKeys{Accepted: []forwarding.TunnelKey{secret}}); strings.Contains(got, "213") ||
			strings.Contains(got, "0xd5") {
			t.Errorf("%s exposes the secret: %s", form, got)
		}
	}
}
