// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

const (
	birdProgram = "/usr/sbin/bird"
	birdShell   = "/usr/sbin/birdc"
	// birdConfig is where the daemon looks for its configuration, birdSockets where birdc looks
	// for the daemon's socket.
	birdConfig  = "/etc/bird"
	birdSockets = "/run/bird"
)

// bird runs BIRD on its default paths, so that a plain birdc works. The file options has options of
// its command line: lab failover writes -R there, which recovers routes from the kernel. What
// the files of the sessions over IPv4 and IPv6 have is part of the configuration of each.
func (l Lab) bird(spec machine.Spec, host topology.Host) (machine.Spec, []File, error) {
	const directory = "bird"
	file, err := render(filepath.Join(spec.Dir, directory, "bird.conf"), "bird.conf", map[string]any{
		"RouterAS":  RouterAS,
		"RouterID":  host.AddrV4(),
		"RouterV6":  host.AddrV6(),
		"Interface": host.Interfaces[0].Name,
		"Nodes":     l.Topology.WithRole(topology.RoleNode),
	})
	if err != nil {
		return spec, nil, err
	}
	spec.Binds = []machine.Bind{{Source: directory, Target: birdConfig}}
	spec.RunFolders = []machine.Folder{{Path: birdSockets}}
	spec.Services = []machine.Service{{
		Name: "bird",
		Command: preferred("/bin/sh", "-ec",
			`exec `+birdProgram+` -f $(cat `+birdConfig+`/options) -c `+birdConfig+`/bird.conf -s `+birdSockets+`/bird.ctl`),
		Ready: &machine.Probe{Dial: "unix " + birdSockets + "/bird.ctl"},
	}}
	files := []File{file}
	for _, name := range []string{"options", "nodes.options", "nodes6.options"} {
		files = append(files, File{Path: filepath.Join(spec.Dir, directory, name), Content: []byte("\n")})
	}
	return spec, files, nil
}
