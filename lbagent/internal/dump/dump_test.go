// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// heldState has an entry of each kind, and frontends that differ in every printed property.
func heldState() *forwarding.State {
	s := forwarding.NewState()
	s.Self = forwarding.Self{ID: 1, IPv4: netip.MustParseAddr("198.51.100.11"), Zone: 2}
	s.Nodes[2] = forwarding.Node{IPv6: netip.MustParseAddr("2001:db8::12")}
	vip := netip.MustParseAddr("203.0.113.10")
	s.VIPs[vip] = struct{}{}
	s.Frontends[forwarding.FrontendKey{VIP: vip, Port: 80, Protocol: forwarding.ProtocolTCP}] =
		forwarding.Frontend{ID: 1, Table: 1, Endpoints: 2, Zones: [forwarding.Zones]forwarding.NodeTableSlot{2: 1, 3: 4}}
	s.Frontends[forwarding.FrontendKey{VIP: vip, Port: 81, Protocol: forwarding.ProtocolUDP}] =
		forwarding.Frontend{ID: 2, Local: true, Ranges: forwarding.NoSources, Affinity: 60}
	s.Frontends[forwarding.FrontendKey{VIP: vip, Port: 82, Protocol: forwarding.ProtocolTCP}] = forwarding.Frontend{ID: 3, Ranges: 7}
	for set, prefix := range map[forwarding.SourceSet]string{7: "198.51.100.0/24", forwarding.Pools: "203.0.113.0/24"} {
		s.SourceRanges[forwarding.SourceRange{Set: set, Prefix: netip.MustParsePrefix(prefix)}] = struct{}{}
	}
	table := forwarding.NewNodeTable()
	for row := range *table {
		(*table)[row].Primary = forwarding.NodeID(1 + row%2)
	}
	s.NodeTables[1] = table
	endpoints := &forwarding.EndpointTable{}
	for row := range endpoints {
		endpoints[row] = 5
		if row%4 == 0 {
			endpoints[row] = forwarding.RefusedEndpoint
		}
	}
	s.EndpointTables[2] = endpoints
	s.Endpoints[5] = forwarding.Endpoint{Address: netip.MustParseAddr("198.18.1.5"), Port: 8080}
	return s
}

// The JSON output is complete and the table equivalent.
func TestDump(t *testing.T) {
	held := newMaps(heldState())
	encoded, err := json.Marshal(held)
	if err != nil {
		t.Fatal(err)
	}
	var decoded consoleapi.Maps
	if err := json.Unmarshal(encoded, &decoded); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(&decoded, held) {
		t.Errorf("decoded %+v, want %+v", decoded, held)
	}
	const want = `self              id 1  198.51.100.11  -             zone 2
node              id 2  -              2001:db8::12  zone 0
vip               203.0.113.10
frontend          203.0.113.10:80  TCP  id 1  by the row           node table 1  endpoint table 2  affinity 0s   sources all  tables by zone 2:1 3:4
frontend          203.0.113.10:81  UDP  id 2  own endpoints first  node table 0  endpoint table 0  affinity 60s  sources none
frontend          203.0.113.10:82  TCP  id 3  by the row           node table 0  endpoint table 0  affinity 0s   sources of set 7
pool              203.0.113.0/24
source range      set 7                198.51.100.0/24
node table 1      rows by node id      map[1:2048 2:2048]
endpoint table 2  rows by endpoint id  map[5:384], refused: 128
endpoint          id 5                 198.18.1.5:8080
`
	var out strings.Builder
	if err := writeMaps(held, &out); err != nil || out.String() != want {
		t.Errorf("error %v, output:\n%swant:\n%s", err, &out, want)
	}
}
