// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/http"
	"strings"
)

const (
	// loopHeader lists passed proxies (RFC 8586). Unlike Via it does not make backends disable compression.
	loopHeader = "Cdn-Loop"
	loopName   = "millrace"
	// maxHops bounds a chain of proxies. A Gateway whose backend is another one's VIP takes two.
	maxHops = 8
)

// errLoop is logged for a 508 response.
var errLoop = errors.New("the request has passed eight Millrace proxies: a backend leads back to their VIP")

// firstHop is the header value of the first hop. It is shared, and its capacity forces append to copy it.
var firstHop = []string{loopName}

func countHops(header http.Header) (count int) {
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

// addHop takes the original header in, so that filters cannot remove earlier hops.
func addHop(in, out http.Header) {
	before := in[loopHeader]
	if len(before) == 0 {
		out[loopHeader] = firstHop
		return
	}
	// A single field, instead of one per hop.
	out[loopHeader] = []string{strings.Join(before, ", ") + ", " + loopName}
}
