// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/http"
	"strings"
)

const (
	// loopHeader lists the proxies that a request has passed (RFC 8586). Unlike Via it changes
	// nothing at backends: some compress no answer to a request with Via.
	loopHeader = "Cdn-Loop"
	// loopName is what each proxy of ours adds to it, of whichever Gateway or class.
	loopName = "millrace"
	// maxHops is how many of our proxies may hand a request on. A Gateway whose backend is the VIP
	// of another one takes two.
	maxHops = 8
)

// errLoop is why a request is answered with 508.
var errLoop = errors.New("the request has passed eight proxies of Millrace: a backend leads back to a VIP of theirs")

// onlyHop is the header of a request that has passed no proxy before. It is shared, and has no room:
// who adds to it makes a copy.
var onlyHop = []string{loopName}

// hops is how many proxies of ours have handed a request on.
func hops(header http.Header) (count int) {
	for _, value := range header[loopHeader] {
		for entry := range strings.SplitSeq(value, ",") {
			// Parameters may follow the name.
			name, _, _ := strings.Cut(entry, ";")
			if strings.TrimSpace(name) == loopName {
				count++
			}
		}
	}
	return count
}

// pass notes in a request for a backend that it has passed this proxy. in is the header that came:
// no filter of a route takes anything out of it.
func pass(in, out http.Header) {
	before := in[loopHeader]
	if len(before) == 0 {
		out[loopHeader] = onlyHop
		return
	}
	// One field: a request that passes many proxies does not have a line for each.
	out[loopHeader] = []string{strings.Join(before, ", ") + ", " + loopName}
}
