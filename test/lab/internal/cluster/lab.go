// SPDX-License-Identifier: Apache-2.0

// Package cluster starts and stops the lab and operates its hosts.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/netns"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// stateFile marks a lab's directory and contains its state.
const stateFile = "lab.json"

// ErrNotUp means that no lab is running.
var ErrNotUp = errors.New("no lab is up here: run `bin/lab up`")

// state is read by later commands. It is written before any resource is created that Down must remove.
type state struct {
	Nodes       int               `json:"nodes"`
	Routers     int               `json:"routers"`
	NodeGrace   time.Duration     `json:"nodeGrace"`
	Snapshotter string            `json:"snapshotter"`
	IPv4Nodes   bool              `json:"ipv4Nodes,omitempty"`
	CNI         config.CNI        `json:"cni"`
	ProxyMode   string            `json:"proxyMode"`
	Router      config.Router     `json:"router"`
	Programs    map[string]string `json:"programs"`
	Controllers []string          `json:"controllers,omitempty"`
}

// Lab is the lab of a state directory.
type Lab struct {
	dir   string
	state state
	config.Lab
}

// Open reads the lab in a state directory, or returns ErrNotUp.
func Open(dir string) (*Lab, error) {
	content, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotUp
	}
	if err != nil {
		return nil, fmt.Errorf("read lab: %w", err)
	}
	saved, err := parseState(content)
	if err != nil {
		return nil, fmt.Errorf("read lab %s: %w", dir, err)
	}
	return newLab(dir, saved)
}

func parseState(content []byte) (state, error) {
	var saved state
	err := json.Unmarshal(content, &saved)
	return saved, err
}

func newLab(dir string, saved state) (*Lab, error) {
	build := topology.New
	if saved.CNI.OwnRoutes() {
		build = topology.NewRouted
	}
	plan, err := build(saved.Nodes, saved.Routers)
	if err != nil {
		return nil, err
	}
	return &Lab{dir: dir, state: saved, Lab: config.Lab{
		Topology:    plan,
		State:       dir,
		Programs:    saved.Programs,
		NodeGrace:   saved.NodeGrace,
		Snapshotter: saved.Snapshotter,
		IPv4Nodes:   saved.IPv4Nodes,
		CNI:         saved.CNI,
		ProxyMode:   saved.ProxyMode,
		Router:      saved.Router,
		MTU:         netns.MTU,
	}}, nil
}

func (l *Lab) save() error {
	content, err := json.MarshalIndent(l.state, "", "  ")
	if err != nil {
		return fmt.Errorf("encode lab: %w", err)
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return fmt.Errorf("create directory of the lab: %w", err)
	}
	if err := os.WriteFile(filepath.Join(l.dir, stateFile), content, 0o644); err != nil {
		return fmt.Errorf("write lab: %w", err)
	}
	return nil
}

// Folder returns the lab's directory, which is visible on all hosts.
func (l *Lab) Folder() string { return l.dir }

func (l *Lab) host(name string) (topology.Host, error) {
	if host, ok := l.Topology.Host(name); ok {
		return host, nil
	}
	var names []string
	for _, host := range l.Topology.Hosts {
		names = append(names, host.Name)
	}
	return topology.Host{}, fmt.Errorf("no host %q: the lab has %s", name, strings.Join(names, ", "))
}

func (l *Lab) node(name string) (topology.Host, error) {
	host, err := l.host(name)
	if err == nil && host.Role != topology.RoleNode {
		err = fmt.Errorf("host %s is a %s and not a node", name, host.Role)
	}
	return host, err
}

func inControlPlane(ctx context.Context, network, address string) (net.Conn, error) {
	var connection net.Conn
	err := netns.Do(config.Namespace("cp"), func() (err error) {
		connection, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return connection, err
}

// lockTime is how long a command waits for another one. A killed command holds the lock until a program
// that it started has executed.
const lockTime = 2 * time.Second

// lockLab prevents concurrent changes of the lab with an abstract socket, which the kernel releases with
// its process.
func lockLab() (release func(), err error) {
	for deadline := time.Now().Add(lockTime); ; time.Sleep(20 * time.Millisecond) {
		listener, err := net.Listen("unix", "@millrace-lab")
		if err == nil {
			return func() { listener.Close() }, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("lock the lab: %w", err)
		}
		if time.Now().After(deadline) {
			return nil, errors.New("another `lab up`, `down`, `node` or `image` command is running: wait for its end")
		}
	}
}
