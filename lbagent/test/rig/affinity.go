// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
)

// Affinities is the session affinity table of a data plane, with the secret of its hash
// (bpf/src/affinity_table.h).
type Affinities struct{ Table, Key *ebpf.Map }

// Affinities opens the session affinity table.
func (r *Rig) Affinities() (*Affinities, error) {
	table, err := r.Map(bpf.DatapathMapAffinities)
	if err != nil {
		return nil, err
	}
	key, err := r.Map(bpf.DatapathMapFingerprintKey)
	return &Affinities{Table: table, Key: key}, err
}

// Find returns the client's record of an endpoint table for the IP protocol, or nil.
func (d *Affinities) Find(client netip.Addr, table uint32, protocol uint8) (*bpf.DatapathAffinity, error) {
	var secret bpf.DatapathFingerprintSecret
	if err := d.Key.Lookup(uint32(0), &secret); err != nil {
		return nil, fmt.Errorf("read the secret of the buckets: %w", err)
	}
	words := Words(client)
	print := print6(&secret, words, words, uint64(table), 0)
	// TCP has the upper half of the buckets.
	half := d.Table.MaxEntries() / 2
	place := uint32(print) & (half - 1)
	if protocol == unix.IPPROTO_TCP {
		place += half
	}
	var bucket bpf.DatapathAffinityBucket
	if err := d.Table.Lookup(place, &bucket); err != nil {
		return nil, fmt.Errorf("read a bucket of records of session affinity: %w", err)
	}
	for i := range bucket.Record {
		if key := bucket.Record[i].Key; key.EndpointTable == table && key.Client.Word == words {
			return &bucket.Record[i].Affinity, nil
		}
	}
	return nil, nil
}
