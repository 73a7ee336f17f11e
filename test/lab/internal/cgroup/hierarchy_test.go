// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"reflect"
	"testing"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name, membership, mountinfo string
		want                        []hierarchy
	}{
		{
			name:       "version 2",
			membership: "0::/user.slice/user-0.slice/session-1.scope\n",
			mountinfo: "24 1 0:22 / / rw - ext4 /dev/sda rw\n" +
				"35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n",
			want: []hierarchy{{"", "/sys/fs/cgroup", "/sys/fs/cgroup/user.slice/user-0.slice/session-1.scope"}},
		},
		{
			name:       "hybrid with controllers together, in another order",
			membership: "3:cpu,cpuacct:/\n2:memory:/a/b\n1:name=systemd:/\n0::/\n",
			mountinfo: "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" +
				"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpuacct,cpu\n" +
				"33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"34 31 0:31 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,release_agent=/lib/x,name=systemd\n" +
				"35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			want: []hierarchy{
				{"cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"},
				{"memory", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/a/b"},
				{"name=systemd", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/systemd"},
				{"", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified"},
			},
		},
		{
			name:       "a container that sees its own part without a namespace",
			membership: "4:pids:/docker/abc/inner\n",
			mountinfo:  "40 31 0:40 /docker/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
			want:       []hierarchy{{"pids", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/pids/inner"}},
		},
		{
			name:       "a membership outside of what is mounted",
			membership: "4:pids:/elsewhere\n5:freezer:/../..\n",
			mountinfo: "40 31 0:40 /docker/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n" +
				"41 31 0:41 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n",
			want: []hierarchy{
				{"pids", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/pids"},
				{"freezer", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup/freezer"},
			},
		},
		{
			name:       "a part mounted over the whole",
			membership: "4:pids:/docker/abc/inner\n",
			mountinfo: "40 31 0:40 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n" +
				"41 31 0:40 /docker/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
			want: []hierarchy{{"pids", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/pids/inner"}},
		},
		{
			name:       "a tree that is not mounted",
			membership: "4:pids:/\n0::/\n",
			mountinfo:  "40 31 0:40 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
			want:       []hierarchy{{"pids", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/pids"}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := parse(test.membership, test.mountinfo); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

// FuzzParse checks that no content makes parse fail or leave what is mounted.
func FuzzParse(f *testing.F) {
	f.Add("0::/\n", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	f.Add("1:a,b:/x\n", "1 2 3 /x /m rw - cgroup c rw,b,a\n")
	f.Fuzz(func(t *testing.T, membership, mountinfo string) {
		for _, hierarchy := range parse(membership, mountinfo) {
			if hierarchy.mountpoint == "" {
				t.Errorf("no mount point for %q", hierarchy.name)
			}
		}
	})
}
