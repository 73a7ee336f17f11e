// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const suite = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4"><testsuite name="Kubernetes e2e suite" tests="4">
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="3.1"></testcase>
<testcase name="[It] [sig-network] Other" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
<testcase name="[It] [sig-network] LoadBalancers one" status="passed" time="61.5"></testcase>
<testcase name="[It] [sig-network] LoadBalancers two" status="STATUS" time="2.5"></testcase>
</testsuite></testsuites>`

func TestSummarize(t *testing.T) {
	for status, want := range map[string]string{"passed": "2 of 2 passed", "failed": "1 of 2 passed", "skipped": "1 of 2 passed"} {
		file := filepath.Join(t.TempDir(), "junit.xml")
		if err := os.WriteFile(file, []byte(strings.Replace(suite, "STATUS", status, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		err := summarize(file, &out)
		if (err == nil) != (status == "passed") || err != nil && !errors.Is(err, errFailed) {
			t.Errorf("%s: %v", status, err)
		}
		if !strings.HasSuffix(out.String(), want+"\n") || strings.Contains(out.String(), "Other") {
			t.Errorf("%s: it prints %q, want %s at the end", status, out.String(), want)
		}
	}
	if err := summarize(filepath.Join(t.TempDir(), "absent"), &strings.Builder{}); err == nil || errors.Is(err, errFailed) {
		t.Errorf("without a report: %v", err)
	}
}
