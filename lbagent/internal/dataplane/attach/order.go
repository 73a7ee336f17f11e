// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// ProgramsBefore returns the egress programs that run before ours. One that ends a packet's processing
// prevents the translation to the VIP. Only tcx programs are listed, no clsact filters.
func (h Hooks) ProgramsBefore(ifindex int) ([]string, error) {
	ours, err := h.pin(ifindex, egressHook.link).open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a filter of clsact
	}
	if err != nil {
		return nil, err
	}
	info, err := ours.Info()
	if err := errors.Join(err, ours.Close()); err != nil {
		return nil, err
	}
	all, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: egressHook.tcx})
	if err != nil {
		return nil, err
	}
	var before []string
	for _, program := range all.Programs {
		if id, linked := program.LinkID(); linked && id == info.ID {
			return before, nil
		}
		before = append(before, describeProgram(program.ID))
	}
	return nil, fmt.Errorf("the program of Millrace is not among the %d attached programs", len(all.Programs))
}

// describeProgram returns a program's id, and its name if readable, which requires CAP_SYS_ADMIN.
func describeProgram(id ebpf.ProgramID) string {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Sprintf("program %d", id)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil || info.Name == "" {
		return fmt.Sprintf("program %d", id)
	}
	return fmt.Sprintf("program %d (%s)", id, info.Name)
}
