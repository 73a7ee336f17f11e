// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach/clsact"
)

func (p Pin) isFilter() bool { return p.Kind == filterIngress || p.Kind == filterEgress }

func (p Pin) filterHook() clsact.Hook {
	if p.Kind == filterEgress {
		return clsact.Hook{Interface: p.Interface, Direction: clsact.Egress, Name: "millrace_egress"}
	}
	return clsact.Hook{Interface: p.Interface, Direction: clsact.Ingress, Name: "millrace_ingress"}
}

// attachFilter creates the record first, so that an interrupted start leaves no unknown filter behind.
func (p Pin) attachFilter(prog *ebpf.Program) error {
	if err := os.Mkdir(p.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: record it in %s: %w", p.Kind, p.path, err)
	}
	if err := clsact.Attach(p.filterHook(), prog.FD()); err != nil {
		return fmt.Errorf("%s: %w", p.Kind, err)
	}
	return nil
}

// updateFilter replaces the program of a filter without a gap. It returns false if the record or the filter
// is missing; a record may belong to a deleted interface with the same index.
func (p Pin) updateFilter(prog *ebpf.Program) (bool, error) {
	if _, err := os.Stat(p.path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("look for filter %s: %w", p.path, err)
	}
	attached, err := clsact.Attached(p.filterHook())
	if err != nil {
		return false, fmt.Errorf("%s: %w", p.Kind, err)
	}
	if !attached {
		return false, p.deleteRecord()
	}
	return true, p.attachFilter(prog)
}

func (p Pin) detachFilter() error {
	if _, err := os.Stat(p.path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := clsact.Detach(p.filterHook()); err != nil {
		return fmt.Errorf("%s: %w", p.Kind, err)
	}
	return p.deleteRecord()
}

func (p Pin) deleteRecord() error {
	if err := os.Remove(p.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of a filter: %w", err)
	}
	return nil
}
