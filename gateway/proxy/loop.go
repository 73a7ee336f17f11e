// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/http"
	"strings"
)

const (
	// loopHeader lists the proxies that a request has passed (RFC 8586). Unlike Via it does not affect
	// backends, some of which disable compression for requests with Via.
	loopHeader = "Cdn-Loop"
	// loopName is the value added by every proxy, whatever its Gateway or class.
	loopName = "millrace"
	// maxHops is the maximum number of proxies in a chain. A Gateway whose backend is another one's VIP
	// takes two.
	maxHops = 8
)

// errLoop is logged for a 508 response.
var errLoop = errors.New("the request has passed eight Millrace proxies: a backend leads back to their VIP")

// firstHop is the header value of the first hop. It is shared, and its capacity forces append to copy it.
var firstHop = []string{loopName}

// hops returns the number of proxies that have forwarded a request.
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

// addHop adds this proxy to the loop header of a backend request. in is the original header, so that filters
// cannot remove earlier hops.
func addHop(in, out http.Header) {
	before := in[loopHeader]
	if len(before) == 0 {
		out[loopHeader] = firstHop
		return
	}
	// A single field, instead of one per hop.
	out[loopHeader] = []string{strings.Join(before, ", ") + ", " + loopName}
}
