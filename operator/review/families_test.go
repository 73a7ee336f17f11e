// SPDX-License-Identifier: Apache-2.0

package review

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestFamilies(t *testing.T) {
	const v6 = `no LBPeer of the VIPAdvertisements of VIPPool "public" announces IPv6, so no node announces its IPv6 addresses: ` +
		`add IPv6 to spec.families of LBPeer "tor1"`
	for name, test := range map[string]struct {
		change func(*Objects)
		want   string
	}{
		"missing IPv6":                 {func(*Objects) {}, v6},
		"peer announces both families": {func(o *Objects) { o.Peers[0].Spec.Families = []millracev1beta1.AddressFamily{"IPv4", "IPv6"} }, ""},
		"missing IPv4": {
			func(o *Objects) { o.Peers[0].Spec.Families = []millracev1beta1.AddressFamily{"IPv6"} },
			`VIPPool "public" announces IPv4, so`,
		},
		"another advertisement selects a peer for the family": {func(o *Objects) {
			o.Peers = append(o.Peers, *o.Peers[0].DeepCopy())
			o.Peers[1].Name, o.Peers[1].Spec.Router.Address = "tor2", "2001:db8:1::1"
			o.Advertisements[0].Spec.Peers = []string{"tor1"}
			o.Advertisements = append(o.Advertisements, millracev1beta1.VIPAdvertisement{
				ObjectMeta: metav1.ObjectMeta{Name: "v6"}, Spec: millracev1beta1.VIPAdvertisementSpec{Peers: []string{"tor2"}},
			})
		}, ""},
		"the peer for the family is selected for another pool": {func(o *Objects) {
			o.Peers = append(o.Peers, *o.Peers[0].DeepCopy())
			o.Peers[1].Name, o.Peers[1].Spec.Router.Address = "tor2", "2001:db8:1::1"
			o.Advertisements[0].Spec.Peers = []string{"tor1"}
		}, v6},
		"nodes answer on links": {func(o *Objects) {
			o.Advertisements[0].Spec = millracev1beta1.VIPAdvertisementSpec{L2: &millracev1beta1.L2Advertisement{}}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			objects := plain()
			objects.Pools[0].Spec.Addresses = []string{"203.0.113.0/30", "2001:db8::/64"}
			test.change(objects)
			state := newCluster(objects).state()
			problems := Cluster(objects).Problems
			var analyzed []string
			for _, problem := range problems {
				if problem.Object.Kind == "VIPPool" && problem.Reason == millracev1beta1.ReasonNoPeer {
					analyzed = append(analyzed, problem.Message)
				}
			}
			for of, got := range map[string][]string{
				"analyze": analyzed, "the pool": Pool(&objects.Pools[0], state), "the advertisement": Families(&objects.Advertisements[0], state),
			} {
				found := slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, test.want) })
				if test.want == "" && len(got) > 0 || test.want != "" && (!found || len(got) != 1) {
					t.Errorf("%s: %q, want %q", of, got, test.want)
				}
			}
		})
	}
}
