// SPDX-License-Identifier: Apache-2.0

package forwardpolicy

import (
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netns"
)

func inNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	own, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Set(before); err != nil {
			// The thread ends with the goroutine.
			t.Error(err)
			return
		}
		own.Close()
		before.Close()
		runtime.UnlockOSThread()
	})
}

func command(t *testing.T, input, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// request and answer are the forwarded packets of a connection with a pod.
func request(pod string) *Packet {
	return &Packet{In: "eth0", Out: "cni0", Destination: netip.MustParseAddr(pod)}
}

func answer(pod string) *Packet {
	return &Packet{In: "cni0", Out: "eth0", Source: netip.MustParseAddr(pod), Established: true}
}

const pod4, pod6 = "198.18.1.2", "2001:db8:18::2"

// base is a chain with policy drop, a set and further chains for references.
func base(family, rules string) string {
	return "table " + family + ` fw {
		set listed { type ipv4_addr; flags interval; elements = { 198.18.0.0/15 } }
		chain accepting { ip protocol tcp accept
		}
		chain refusing { ct state invalid drop
		}
		chain returning { return
		}
		chain marking { meta mark set 1
		}
		chain forward { type filter hook forward priority 0; policy drop;
			` + rules + `
		}
	}`
}

func TestNFTables(t *testing.T) {
	for _, test := range []struct {
		name, ruleset   string
		request, answer bool
	}{
		{"no rules", base("ip", ""), true, true},
		{"both families", base("inet", ""), true, true},
		{"policy accept", "table ip fw { chain forward { type filter hook forward priority 0; policy accept; }; }", false, false},
		{"input", "table ip fw { chain input { type filter hook input priority 0; policy drop; }; }", false, false},
		{"the other family", "table ip6 fw { chain forward { type filter hook forward priority 0; policy drop; }; }", false, false},
		{"all accepted", base("ip", "accept"), false, false},
		{"established", base("ip", "ct state established,related accept"), true, false},
		{"conntrack states in a map", base("ip", "ct state vmap { established : accept, related : accept, invalid : drop }"), true, false},
		{"new connections in a map", base("ip", "ct state vmap { new : accept, invalid : drop }"), false, true},
		{"pod addresses", base("ip", "ip daddr 198.18.0.0/15 accept; ip saddr 198.18.0.0/15 accept"), false, false},
		{"only to the pods", base("ip", "ip daddr 198.18.0.0/16 ct state new accept"), false, true},
		{"others", base("ip", "ip daddr 198.51.100.0/24 ip saddr 198.51.100.0/24 accept"), true, true},
		{"by interface", base("ip", `oifname "cni0" accept; iifname "cni0" accept`), false, false},
		{"by interface name prefix", base("ip", `oifname "cni*" accept`), false, true},
		{"other interfaces", base("ip", `iifname "docker0" accept; oifname "docker0" accept`), true, true},
		{"not from an interface", base("ip", `iifname != "docker0" accept`), false, false},
		{"marked", base("ip", "meta mark and 0x4000 == 0x4000 accept"), true, true},
		{"previously marked packets", base("ip", "jump marking; meta mark and 0x4000 == 0x4000 accept"), false, false},
		{"in a chain", base("ip", "jump accepting"), false, false},
		{"chain without accept rules", base("ip", "jump refusing; jump returning"), true, true},
		{"dropped by a rule, not by the policy", base("ip", "drop"), false, false},
		{"dropped in a chain", base("ip", "goto refusing; accept"), true, true},
		{"rejected", base("ip", "reject"), false, false},
		{"set that cannot be read", base("ip", "ip daddr @listed accept"), false, false},
		{"another chain accepts", base("ip", "") + "\ntable ip other { chain forward { type filter hook forward priority 1; accept\n }; }", true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inNamespace(t)
			command(t, test.ruleset, "nft", "-f", "-")
			for _, packet := range []struct {
				name string
				*Packet
				want bool
			}{{"request", request(pod4), test.request}, {"answer", answer(pod4), test.answer}} {
				got, err := Dropping(packet.Packet)
				if err != nil || len(got) > 0 != packet.want {
					t.Errorf("%s: Dropping = %q, %v, want dropped: %t", packet.name, got, err, packet.want)
				}
			}
		})
	}
}

var tools = map[string]string{"iptables-nft": pod4, "ip6tables-nft": pod6}

var chains = map[string]string{"iptables-nft": "ip", "ip6tables-nft": "ip6"}

func TestIPTables(t *testing.T) {
	const established = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
	for _, test := range []struct {
		name  string
		rules []string
		want  bool
	}{
		{"policy only", nil, true},
		{"kube-proxy", []string{
			"-N KUBE-FORWARD", `-A FORWARD -m comment --comment rules -j KUBE-FORWARD`,
			"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
			"-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT", "-A KUBE-FORWARD " + established,
		}, true},
		{"Docker", []string{
			"-N DOCKER", "-A FORWARD -o docker0 " + established, "-A FORWARD -o docker0 -j DOCKER",
			"-A FORWARD -i docker0 -j ACCEPT", "-A DOCKER -i docker0 -o docker0 -j ACCEPT",
		}, true},
		{"Calico", []string{
			"-N cali-FORWARD", "-A FORWARD -j cali-FORWARD", "-A cali-FORWARD -j MARK --set-xmark 0x10000/0x10000",
			"-A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT",
		}, false},
		{"not for new connections", []string{"-A FORWARD -m conntrack ! --ctstate NEW -j ACCEPT"}, true},
		{"by interface", []string{"-A FORWARD -o cni0 -j ACCEPT"}, false},
		{"by interface name prefix", []string{"-A FORWARD -i eth+ -j ACCEPT"}, false},
		{"other interfaces", []string{"-A FORWARD -i docker0 -j ACCEPT", "-A FORWARD -o docker+ -j ACCEPT"}, true},
		{"not from an interface", []string{"-A FORWARD ! -i docker0 -j ACCEPT"}, false},
		{"not from this interface", []string{"-A FORWARD ! -i eth0 -j ACCEPT"}, true},
		{"a protocol", []string{"-A FORWARD -p tcp -j ACCEPT"}, false},
		{"ports", []string{"-A FORWARD -p tcp --dport 80 -j ACCEPT"}, false},
		{"returned", []string{"-N MINE", "-A FORWARD -j MINE", "-A MINE -j RETURN", "-A MINE -j ACCEPT"}, true},
		{"goto a chain", []string{"-N MINE", "-A FORWARD -g MINE", "-A FORWARD -j ACCEPT", "-A MINE -j MARK --set-mark 1"}, true},
		{"dropped by a rule, not by the policy", []string{"-A FORWARD -j DROP"}, false},
		{"rejected", []string{"-A FORWARD -j REJECT"}, false},
	} {
		for tool, pod := range tools {
			t.Run(test.name+"/"+tool, func(t *testing.T) {
				inNamespace(t)
				for _, rule := range append([]string{"-P FORWARD DROP"}, test.rules...) {
					command(t, "", tool, strings.Fields(rule)...)
				}
				want := []string(nil)
				if test.want {
					want = []string{chains[tool] + " filter FORWARD"}
				}
				if got, err := Dropping(request(pod)); err != nil || !slices.Equal(got, want) {
					t.Errorf("request: Dropping = %q, %v, want %q", got, err, want)
				}
			})
		}
	}
	for tool, pod := range tools {
		rule := map[string]string{pod4: "198.18.0.0/15", pod6: "2001:db8:18::/48"}[pod]
		t.Run("Flannel/"+tool, func(t *testing.T) {
			inNamespace(t)
			command(t, "", tool, "-P", "FORWARD", "DROP")
			command(t, "", tool, "-N", "FLANNEL-FWD")
			command(t, "", tool, "-A", "FORWARD", "-j", "FLANNEL-FWD")
			command(t, "", tool, "-A", "FLANNEL-FWD", "-s", rule, "-j", "ACCEPT")
			command(t, "", tool, "-A", "FLANNEL-FWD", "-d", rule, "-j", "ACCEPT")
			for _, packet := range []*Packet{request(pod), answer(pod)} {
				if got, err := Dropping(packet); err != nil || len(got) > 0 {
					t.Errorf("%+v: Dropping = %q, %v, want none", packet, got, err)
				}
			}
		})
	}
}
