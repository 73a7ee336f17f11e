// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestExplainRefusal(t *testing.T) {
	refusal := fmt.Errorf("load the BPF programs: %w", syscall.EPERM)
	for name, test := range map[string]struct {
		err     error
		context string
		want    string
	}{
		"unrelated error":    {errors.New("no such map"), "system_u:system_r:container_t:s0", "no such map"},
		"no security module": {refusal, "", "PERFMON?"},
		"unconfined":         {refusal, "unconfined\n", "PERFMON?"},
		"SELinux":            {refusal, "system_u:system_r:container_t:s0\x00", `"system_u:system_r:container_t:s0"`},
		"AppArmor":           {refusal, "cri-containerd.apparmor.d (enforce)\n", `"cri-containerd.apparmor.d (enforce)"`},
		"read-only":          {fmt.Errorf("pin: %w", syscall.EROFS), "", "remount,rw"},
		"access refused":     {fmt.Errorf("open: %w", syscall.EACCES), "container_t", "spc_t"},
	} {
		file := filepath.Join(t.TempDir(), "current")
		if err := os.WriteFile(file, []byte(test.context), 0o600); err != nil {
			t.Fatal(err)
		}
		got := explainPermission(test.err, file)
		if !errors.Is(got, test.err) || !strings.Contains(got.Error(), test.want) {
			t.Errorf("%s: error %q, want it to contain %q", name, got, test.want)
		}
		if !errors.Is(test.err, fs.ErrPermission) && !errors.Is(test.err, syscall.EROFS) && got.Error() != test.err.Error() {
			t.Errorf("%s: explanation added to unrelated error %q", name, got)
		}
	}
	if got := explainPermission(refusal, filepath.Join(t.TempDir(), "absent")); !strings.Contains(got.Error(), "capabilities") {
		t.Errorf("without the file: error %q", got)
	}
}
