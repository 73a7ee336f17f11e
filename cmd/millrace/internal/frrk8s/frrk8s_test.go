// SPDX-License-Identifier: Apache-2.0

package frrk8s

import (
	"maps"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

const written = `
metadata: {name: metallb-node1, namespace: metallb-system}
spec:
  nodeSelector: {matchLabels: {kubernetes.io/hostname: node1}}
  bgp:
    routers:
      - asn: 64513
        neighbors: [{address: "2001:db8:0:1:0::101", asn: 64512}, {address: 198.51.100.101, asn: 64512}]
      - {asn: 64513, vrf: red, neighbors: [{interface: eth1}]}
`

func read(t *testing.T, text string) *Configuration {
	t.Helper()
	c := &Configuration{}
	if err := yaml.Unmarshal([]byte(text), c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConfiguration(t *testing.T) {
	c := read(t, written)
	want := []Peer{{ID: "198.51.100.101"}, {ID: "2001:db8:0:1::101"}, {VRF: "red", ID: "eth1"}}
	if got := c.Peers(); !slices.Equal(got, want) {
		t.Errorf("peers %v, want %v", got, want)
	}
	if !c.BySpeaker() || c.Name() != "FRRConfiguration metallb-system/metallb-node1" {
		t.Errorf("%s is a speaker's: %t", c.Name(), c.BySpeaker())
	}
	if !c.Selects(map[string]string{"kubernetes.io/hostname": "node1"}) || c.Selects(nil) {
		t.Error("it selects other nodes than node1")
	}
	// The name alone does not identify it, because users may choose it.
	own := read(t, `metadata: {name: metallb-routes, namespace: metallb-system}`)
	if own.BySpeaker() || !own.Selects(nil) {
		t.Error("one without a selector is a speaker's, or selects no node")
	}
	if shared := Shared(c.Peers(), []Peer{NewPeer("red", "eth1"), NewPeer("", "203.0.113.1")}); !slices.Equal(shared, want[2:]) {
		t.Errorf("shared are %v, want %v", shared, want[2:])
	}
}

// The text is from FRR 8.4, shortened.
func TestReadSessions(t *testing.T) {
	got, err := ReadSessions([]byte(`{
"default":{"vrfId":0,"vrfName":"default",
  "198.51.100.101":{"remoteAs":64512,"bgpState":"Established"},
  "2001:db8:0:1::101":{"remoteAs":64512,"bgpState":"Idle"}}
,
"red":{"vrfId":-1,"vrfName":"red","203.0.113.1":{"bgpState":"Established"}}
}`))
	if err != nil {
		t.Fatal(err)
	}
	first, second, red := NewPeer("default", "198.51.100.101"), NewPeer("", "2001:db8:0:1:0::101"), NewPeer("red", "203.0.113.1")
	if want := (Sessions{first: true, second: false, red: true}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if established := got.Established([]Peer{first, second, {ID: "absent"}}); established != 1 {
		t.Errorf("%d are established, want 1", established)
	}
	if peers := got.Peers(); !slices.Equal(peers, []Peer{first, second, red}) {
		t.Errorf("sorted are %v", peers)
	}
	if none, err := ReadSessions([]byte("{\n}\n")); err != nil || len(none) > 0 {
		t.Errorf("FRR without BGP: %v, %v", none, err)
	}
	if _, err := ReadSessions([]byte("bgpd is not running\n")); err == nil {
		t.Error("what is no JSON is read")
	}
}
