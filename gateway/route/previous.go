// SPDX-License-Identifier: Apache-2.0

package route

import (
	"maps"

	"google.golang.org/protobuf/proto"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// previous is the resources of the last result, by owner and name.
type previous map[Object]map[string]*remembered

// remembered is a resource and its bytes on the wire, by which it is compared: that is several
// times as fast as comparing messages field by field.
type remembered struct {
	resource *resource.Resource
	wire     string
	run      bool
}

// reuse puts the former pointer in the place of each resource that did not change.
func (p *previous) reuse(result *Result) {
	next := make(previous, len(result.Proxies))
	var buffer []byte
	for _, proxy := range result.Proxies {
		known := (*p)[proxy.Owner]
		if known == nil {
			known = make(map[string]*remembered, len(proxy.Resources))
		}
		run := !(*p).lastRun(proxy.Owner)
		for i, found := range proxy.Resources {
			before := known[found.Name]
			if before == nil {
				before = &remembered{}
				known[found.Name] = before
			}
			before.run = run
			if before.resource != found {
				buffer, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend(buffer[:0], found)
				if before.resource == nil || before.wire != string(buffer) {
					before.resource, before.wire = found, string(buffer)
				}
			}
			proxy.Resources[i] = before.resource
		}
		maps.DeleteFunc(known, func(_ string, each *remembered) bool { return each.run != run })
		next[proxy.Owner] = known
	}
	*p = next
}

// lastRun is the mark of an owner's last run; it changes with each.
func (p previous) lastRun(owner Object) bool {
	for _, each := range p[owner] {
		return each.run
	}
	return false
}
