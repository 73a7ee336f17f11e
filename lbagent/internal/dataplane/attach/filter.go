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

// filterHook is where the filter is; its name is what `tc filter show` shows.
func (p Pin) filterHook() clsact.Hook {
	if p.Kind == filterEgress {
		return clsact.Hook{Interface: p.Interface, Direction: clsact.Egress, Name: "millrace_egress"}
	}
	return clsact.Hook{Interface: p.Interface, Direction: clsact.Ingress, Name: "millrace_ingress"}
}

// attachFilter leaves the record first, so that an interrupted start leaves nothing
// behind that is not known.
func (p Pin) attachFilter(prog *ebpf.Program) error {
	if err := os.Mkdir(p.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: record it in %s: %w", p.Kind, p.path, err)
	}
	if err := clsact.Attach(p.filterHook(), prog.FD()); err != nil {
		return fmt.Errorf("%s: %w", p.Kind, err)
	}
	return nil
}

// updateFilter replaces the program of a filter without a gap. It reports false
// where there is no record of one, or none at the interface, as when the record is
// that of another interface with the same index.
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
		return false, p.forgetFilter()
	}
	return true, p.attachFilter(prog)
}

// detachFilter takes the filter off the interface and removes the record.
func (p Pin) detachFilter() error {
	if _, err := os.Stat(p.path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := clsact.Detach(p.filterHook()); err != nil {
		return fmt.Errorf("%s: %w", p.Kind, err)
	}
	return p.forgetFilter()
}

func (p Pin) forgetFilter() error {
	if err := os.Remove(p.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of a filter: %w", err)
	}
	return nil
}
