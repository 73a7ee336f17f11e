// SPDX-License-Identifier: Apache-2.0

// Package routerdiscovery finds the routers of unnumbered BGP peers by their router advertisements (RFC 4861).
package routerdiscovery

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/go-logr/logr"
)

// Discovery finds the routers on interfaces.
type Discovery struct {
	changed func()
	logger  logr.Logger

	mu    sync.Mutex
	links map[string]*link
}

// New returns a Discovery that calls changed after each change of a router.
func New(changed func(), logger logr.Logger) *Discovery {
	return &Discovery{changed: changed, logger: logger, links: map[string]*link{}}
}

// Routers returns the link-local address of the router on each of the interfaces that exist, with the interface
// as zone. The address is invalid until a router was found. Other interfaces are no longer observed. A
// nil Discovery finds no interface.
func (d *Discovery) Routers(interfaces []string) map[string]netip.Addr {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, l := range d.links {
		if !slices.Contains(interfaces, name) {
			l.close()
			delete(d.links, name)
		}
	}
	routers := make(map[string]netip.Addr, len(interfaces))
	for _, name := range interfaces {
		if l := d.observe(name); l != nil {
			routers[name] = l.router()
		}
	}
	return routers
}

// observe returns the link of an interface, or nil if the interface does not exist.
func (d *Discovery) observe(name string) *link {
	device, err := net.InterfaceByName(name)
	previous := d.links[name]
	if previous != nil && err == nil && previous.device.Index == device.Index {
		return previous
	}
	if previous != nil {
		// The interface was removed or replaced by another one of the same name.
		previous.close()
		delete(d.links, name)
	}
	if err != nil {
		return nil
	}
	l := &link{device: *device, changed: d.changed, logger: d.logger.WithValues("interface", name), closed: make(chan struct{})}
	d.links[name] = l
	go l.run()
	return l
}

// Close ends the observation of all interfaces.
func (d *Discovery) Close() { d.Routers(nil) }
