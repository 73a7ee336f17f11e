// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const securityContext = "/proc/self/attr/current"

// ExplainPermission adds likely causes to a permission error of the kernel: missing capabilities, a security
// module, or a read-only file system.
func ExplainPermission(err error) error { return explainPermission(err, securityContext) }

func explainPermission(err error, file string) error {
	if errors.Is(err, unix.EROFS) {
		return fmt.Errorf("%w; the BPF file system must be writable: mount -o remount,rw %s", err, bpffsDirectory)
	}
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	content, unread := os.ReadFile(file)
	context := strings.TrimRight(string(content), "\x00\n ")
	if unread != nil || context == "" || context == "unconfined" {
		return fmt.Errorf("%w; does the container have the capabilities BPF, NET_ADMIN and PERFMON?", err)
	}
	return fmt.Errorf("%w; does the container have the capabilities BPF, NET_ADMIN and PERFMON, and may the context %q use BPF? "+
		"Under SELinux set seLinuxOptions.type to spc_t", err, context)
}
