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
	// birdConfig and birdSockets are the default paths of the daemon and birdc.
	birdConfig  = "/etc/bird"
	birdSockets = "/run/bird"
)

// bird runs BIRD with its default paths, so that birdc works. The file options has command line options:
// lab failover writes -R, which recovers routes from the kernel. The files of the IPv4 and IPv6 sessions
// are included by their configuration.
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
