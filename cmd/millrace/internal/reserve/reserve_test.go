// SPDX-License-Identifier: Apache-2.0

package reserve

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func pool(usable ...string) *millracev1beta1.VIPPool {
	return &millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "public"},
		Spec:       millracev1beta1.VIPPoolSpec{Addresses: []string{"203.0.113.0/29", "2001:db8::/64"}},
		Status:     millracev1beta1.VIPPoolStatus{Usable: usable},
	}
}

// vips returns VIPs created one after another, each as "address" or "address pool".
func vips(texts ...string) []millracev1beta1.VIP {
	var made []millracev1beta1.VIP
	for i, text := range texts {
		address, pool, _ := strings.Cut(text, " ")
		if pool == "" {
			pool = "public"
		}
		made = append(made, millracev1beta1.VIP{
			ObjectMeta: metav1.ObjectMeta{Name: address, CreationTimestamp: metav1.Unix(int64(i)*int64(time.Minute/time.Second), 0)},
			Spec:       millracev1beta1.VIPSpec{Address: address, Pool: pool},
		})
	}
	return made
}

func TestNext(t *testing.T) {
	usable := []string{"203.0.113.1-203.0.113.2", "203.0.113.5-203.0.113.6", "2001:db8::1-2001:db8::ffff"}
	for _, test := range []struct {
		name   string
		pool   *millracev1beta1.VIPPool
		vips   []millracev1beta1.VIP
		family string
		want   string
		fails  string
	}{
		{name: "the first", pool: pool(usable...), want: "203.0.113.1"},
		{name: "of the other family", pool: pool(usable...), family: "IPv6", want: "2001:db8::1"},
		{name: "of the only family", pool: pool(usable[2]), want: "2001:db8::1"},
		{name: "behind the newest", pool: pool(usable...), vips: vips("203.0.113.1"), want: "203.0.113.2"},
		{name: "in the next range", pool: pool(usable...), vips: vips("203.0.113.2"), want: "203.0.113.5"},
		{name: "the newest is not the highest", pool: pool(usable...), vips: vips("203.0.113.6", "203.0.113.1"), want: "203.0.113.2"},
		{name: "from the beginning again", pool: pool(usable...), vips: vips("203.0.113.1", "203.0.113.6"), want: "203.0.113.2"},
		{name: "another pool's VIP is no beginning", pool: pool(usable...), vips: vips("203.0.113.1 other"), want: "203.0.113.2"},
		{name: "the other family's is none", pool: pool(usable...), vips: vips("203.0.113.5", "2001:db8::7"), want: "203.0.113.6"},
		{name: "full", pool: pool(usable...), vips: vips("203.0.113.1", "203.0.113.2", "203.0.113.5", "203.0.113.6"), fails: "no free IPv4 address"},
		{name: "no such family", pool: pool(usable[0]), family: "IPv6", fails: "no free IPv6 address"},
		{name: "not looked at", pool: pool(), fails: "no status.usable"},
		{name: "the last address that there is", pool: pool("203.0.113.7"), vips: vips("203.0.113.7"), fails: "no free IPv4 address"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Next(test.pool, test.vips, test.family)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Fatalf("%v, %v, want an error with %q", got, err, test.fails)
				}
				return
			}
			if err != nil || got != netip.MustParseAddr(test.want) {
				t.Errorf("%v, %v, want %s", got, err, test.want)
			}
		})
	}
}
