// SPDX-License-Identifier: Apache-2.0

package frr

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
)

// StartBFD runs bfdd beside the router's other daemons until the test ends. configuration is
// the inside of its "bfd" section; peers of bgpd's "neighbor bfd" need none.
func (r *Router) StartBFD(configuration string) {
	r.t.Helper()
	owner, err := user.Lookup("frr")
	if err != nil {
		r.t.Fatal(err)
	}
	uid, _ := strconv.Atoi(owner.Uid)
	gid, _ := strconv.Atoi(owner.Gid)
	content := "log file " + r.file("bfdd.log") + "\nbfd\n" + configuration
	if err := os.WriteFile(r.file("bfdd.conf"), []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Chown(r.file("bfdd.conf"), uid, gid); err != nil {
		r.t.Fatal(err)
	}
	cmd := r.daemon("bfdd", "--bfdctl", r.file("bfdd.sock"))
	r.t.Cleanup(func() { end(cmd) })
}

// Configure runs commands in the router's configuration mode.
func (r *Router) Configure(commands ...string) {
	r.t.Helper()
	arguments := []string{"--vty_socket", r.state, "-c", "configure terminal"}
	for _, command := range commands {
		arguments = append(arguments, "-c", command)
	}
	if out, err := exec.Command("vtysh", arguments...).CombinedOutput(); err != nil {
		r.t.Fatalf("configure %q: %v: %s", commands, err, out)
	}
}
