// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

// DataAffinities are the records of session affinity that a data plane has for UDP and SCTP, with the
// secret by which their buckets are found (bpf/src/affinity_table.h).
type DataAffinities struct{ Table, Key *ebpf.Map }

// DataAffinities opens the table.
func (r *Rig) DataAffinities() (*DataAffinities, error) {
	table, err := r.Map(bpf.DatapathMapDataAffinities)
	if err != nil {
		return nil, err
	}
	key, err := r.Map(bpf.DatapathMapExceptionKey)
	return &DataAffinities{Table: table, Key: key}, err
}

// Find is the client's record of an endpoint table, or nil.
func (d *DataAffinities) Find(client netip.Addr, table uint32) (*bpf.DatapathAffinity, error) {
	var secret bpf.DatapathExceptionSecret
	if err := d.Key.Lookup(uint32(0), &secret); err != nil {
		return nil, fmt.Errorf("read the secret of the buckets: %w", err)
	}
	words := Words(client)
	print := print6(&secret, words, words, uint64(table), 0)
	var bucket bpf.DatapathAffinityBucket
	if err := d.Table.Lookup(uint32(print)&(d.Table.MaxEntries()-1), &bucket); err != nil {
		return nil, fmt.Errorf("read a bucket of records of session affinity: %w", err)
	}
	for i := range bucket.Record {
		if key := bucket.Record[i].Key; key.EndpointTable == table && key.Client.Word == words {
			return &bucket.Record[i].Affinity, nil
		}
	}
	return nil, nil
}
