// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

// The index counts endpoints by address and port. It is rebuilt at every start.

func endpointPort(endpoint bpf.DatapathEndpoint) bpf.DatapathEndpointPort {
	return bpf.DatapathEndpointPort{Address: endpoint.Address, Port: endpoint.Port}
}

func (d *Dataplane) indexEndpoint(old, endpoint bpf.DatapathEndpoint) error {
	from, to := endpointPort(old), endpointPort(endpoint)
	if from == to {
		return nil
	}
	return errors.Join(d.countEndpoint(to, 1), d.countEndpoint(from, -1))
}

func (d *Dataplane) countEndpoint(key bpf.DatapathEndpointPort, change int) error {
	if key.Port == 0 {
		return nil
	}
	var count uint32
	err := d.maps.EndpointPorts.Lookup(key, &count)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return failure(bpf.DatapathMapEndpointPorts, showEndpointPort(key), err)
	}
	changed := int(count) + change
	if changed <= 0 {
		return remove(d.maps.EndpointPorts, bpf.DatapathMapEndpointPorts, showEndpointPort(key), key)
	}
	return write(d.maps.EndpointPorts, bpf.DatapathMapEndpointPorts, showEndpointPort(key), key, uint32(changed))
}

func showEndpointPort(key bpf.DatapathEndpointPort) string {
	return fmt.Sprintf("%s port %d", decodeAddress(key.Address), hostPort(key.Port))
}

func (d *Dataplane) restoreEndpointPorts() error {
	counts := map[bpf.DatapathEndpointPort]uint32{}
	err := readMap(d.maps.Endpoints, func(_ uint32, endpoint bpf.DatapathEndpoint) {
		if endpoint.Port != 0 {
			counts[endpointPort(endpoint)]++
		}
	})
	if err != nil {
		return fmt.Errorf("read map endpoints: %w", err)
	}
	for key, count := range counts {
		err := write(d.maps.EndpointPorts, bpf.DatapathMapEndpointPorts, showEndpointPort(key), key, count)
		if err != nil {
			return err
		}
	}
	return nil
}

// NATExempt returns the descriptor of the filter that matches replies of VIPs among packets subject to SNAT
// (package natexempt). It is valid until Close.
func (d *Dataplane) NATExempt() int { return d.programs.NatExempt.FD() }
