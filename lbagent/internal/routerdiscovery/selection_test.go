// SPDX-License-Identifier: Apache-2.0

package routerdiscovery

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Each step is an advertisement (a), a neighbor advertisement (n), or the expiry of the timer (t), with the expected
// router and message after it: "a1" of router fe80::1.
func TestSelection(t *testing.T) {
	for name, steps := range map[string]string{
		"no router":                          "t>-,solicit t>-,solicit",
		"first router":                       "t>-,solicit a1>1,none a1>1,none",
		"replaced router that still answers": "a1>1,none a2>1,due t>1,probe n1>1,none a2>1,due t>1,probe a1>1,none",
		"replies of other routers":           "a1>1,none a2>1,due n2>1,due t>1,probe n2>1,due t>1,probe t>1,probe t>2,none",
		"router replaced once":               "a1>1,none a2>1,due t>1,probe t>1,probe t>1,probe t>2,none a1>2,due t>2,probe n2>2,none",
		"router replaced twice":              "a1>1,none a2>1,due a3>1,due t>1,probe a3>1,due t>1,probe t>1,probe t>2,none",
		"reply to the last probe":            "a1>1,none a2>1,due t>1,probe t>1,probe t>1,probe n1>1,none",
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			s := selection{due: now}
			for _, step := range strings.Fields(steps) {
				do, want, _ := strings.Cut(step, ">")
				message := ""
				switch source := "fe80::" + do[1:]; do[0] {
				case 'a':
					s.advertised(netip.MustParseAddr(source), now)
				case 'n':
					s.answered(netip.MustParseAddr(source))
				case 't':
					now = s.due
					solicit, probe := s.expire(now)
					switch {
					case solicit:
						message = "solicit"
					case probe.IsValid():
						message = "probe"
						if probe != s.router {
							t.Errorf("%s: probes %s, want the router %s", step, probe, s.router)
						}
					}
				}
				switch {
				case message != "":
				case s.due.IsZero():
					message = "none"
				default:
					message = "due"
				}
				router := "-"
				if s.router.IsValid() {
					router = strings.TrimPrefix(s.router.String(), "fe80::")
				}
				if got := router + "," + message; got != want {
					t.Fatalf("%s: got %s, want %s", do, got, want)
				}
				if s.due.IsZero() != (message == "none") {
					t.Fatalf("%s: next expiry at %s", do, s.due)
				}
			}
		})
	}
}
