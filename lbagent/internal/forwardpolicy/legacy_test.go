// SPDX-License-Identifier: Apache-2.0

package forwardpolicy

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// A table that nobody made must not be made by a look at it: the kernel would take all packets
// through it from then on.
func TestLegacyMakesNoTable(t *testing.T) {
	inNamespace(t)
	for _, pod := range []string{pod4, pod6} {
		if got, err := Dropping(request(pod)); err != nil || len(got) > 0 {
			t.Errorf("%s: %q, %v, want none", pod, got, err)
		}
	}
	for _, names := range []string{"ip_tables_names", "ip6_tables_names"} {
		if tables, err := os.ReadFile("/proc/thread-self/net/" + names); err != nil || len(tables) > 0 {
			t.Errorf("%s: %q, %v, want none", names, tables, err)
		}
	}
}

func TestLegacyAccepts(t *testing.T) {
	inNamespace(t)
	for _, tool := range []string{"iptables-legacy", "ip6tables-legacy"} {
		command(t, "", tool, "-P", "FORWARD", "ACCEPT")
		command(t, "", tool, "-P", "INPUT", "DROP")
	}
	for _, pod := range []string{pod4, pod6} {
		if got, err := Dropping(request(pod)); err != nil || len(got) > 0 {
			t.Errorf("%s: %q, %v, want none", pod, got, err)
		}
	}
}

func TestLegacyAddresses(t *testing.T) {
	for _, test := range []struct {
		rule            string
		request, answer bool
	}{
		// The other end of a connection may have any address.
		{"-d 198.18.0.0/16 -j ACCEPT", false, false},
		{"-d 198.18.0.0/16 -m conntrack --ctstate NEW -j ACCEPT", false, true},
		{"-s 198.18.0.0/16 -m conntrack --ctstate ESTABLISHED -j ACCEPT", true, false},
		{"! -d 198.18.0.0/16 -j ACCEPT", true, false},
		{"-d 198.18.2.0/24 -j ACCEPT", true, false},
		{"! -d 198.18.2.0/24 -j ACCEPT", false, false},
	} {
		t.Run(test.rule, func(t *testing.T) {
			inNamespace(t)
			command(t, "", "iptables-legacy", "-P", "FORWARD", "DROP")
			command(t, "", "iptables-legacy", strings.Fields("-A FORWARD "+test.rule)...)
			for packet, want := range map[*Packet]bool{request(pod4): test.request, answer(pod4): test.answer} {
				if got, err := Dropping(packet); err != nil || len(got) > 0 != want {
					t.Errorf("%+v: %q, %v, want dropped: %t", packet, got, err, want)
				}
			}
		})
	}
}

// What the kernel gives may be of a later version: it is refused or understood otherwise, and
// nothing worse.
func TestLegacyGarbage(t *testing.T) {
	inNamespace(t)
	for _, rule := range []string{
		"-P FORWARD DROP", "-N A", "-N B", "-A FORWARD -m conntrack --ctstate ESTABLISHED -j A", "-A FORWARD -i eth+ -g B",
		"-A FORWARD -m comment --comment some -j A", "-A A -p tcp --dport 80 -j B", "-A A -j RETURN", "-A B -m mark --mark 1 -j MARK --set-mark 2",
	} {
		command(t, "", "iptables-legacy", strings.Fields(rule)...)
	}
	table, err := readLegacy4()
	if err != nil || table == nil {
		t.Fatalf("%v, %v, want a table", table, err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	whole, refused := table.blob, 0
	for range 20000 {
		table.blob = append([]byte(nil), whole[:len(whole)-random.IntN(2)*random.IntN(len(whole))]...)
		for range 1 + random.IntN(4) {
			if len(table.blob) > 0 {
				table.blob[random.IntN(len(table.blob))] = byte(random.Uint32())
			}
		}
		chain, err := table.base()
		if err == nil && chain != nil {
			_, err = policyDrops(answer(pod4), chain, table)
		}
		if errors.Is(err, errLegacy) {
			refused++
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the garbage is none")
	}
}
