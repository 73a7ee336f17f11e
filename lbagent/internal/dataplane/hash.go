// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/bpf"
)

func setHash(spec *ebpf.CollectionSpec, constants flowhash.Constants) error {
	for name, value := range map[string]any{
		bpf.DatapathVarClientMultipliers:  constants.Client,
		bpf.DatapathVarVipMultipliers:     constants.VIP,
		bpf.DatapathVarPortsMultiplier:    constants.Ports,
		bpf.DatapathVarProtocolMultiplier: constants.Protocol,
		bpf.DatapathVarFrontendMultiplier: constants.Frontend,
		bpf.DatapathVarHashAddend:         constants.Addend,
	} {
		// The errors contain no values of the secret seed.
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s of the BPF programs: %w", name, err)
		}
	}
	return nil
}
