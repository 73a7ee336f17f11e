// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"io/fs"
	"slices"
	"testing"
)

func TestStrictlyFiltered(t *testing.T) {
	for _, test := range []struct {
		name     string
		uplinks  []string
		settings map[string]int
		want     []string
	}{
		{"one uplink", []string{"eth0"}, map[string]int{"all": 1, "eth0": 1}, nil},
		{"off", []string{"eth0", "eth1"}, map[string]int{"all": 0, "eth0": 0, "eth1": 0}, nil},
		{"one of two interfaces", []string{"eth0", "eth1"}, map[string]int{"all": 0, "eth0": 0, "eth1": 1}, []string{"eth1"}},
		{"all interfaces strict", []string{"eth0", "eth1"}, map[string]int{"all": 1, "eth0": 0, "eth1": 2}, []string{"eth0"}},
		{"all interfaces loose", []string{"eth0", "eth1"}, map[string]int{"all": 2, "eth0": 1, "eth1": 1}, nil},
		{"interface removed", []string{"eth0", "eth1"}, map[string]int{"all": 1, "eth0": 1}, []string{"eth0"}},
		{"no settings", []string{"eth0", "eth1"}, nil, nil},
	} {
		got := strictlyFiltered(test.uplinks, func(name string) (int, error) {
			value, ok := test.settings[name]
			if !ok {
				return 0, fs.ErrNotExist
			}
			return value, nil
		})
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
