// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

const host = "webhook.example.svc"

func trusts(t *testing.T, bundle, certificate []byte, now time.Time) error {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		t.Fatal("no certificate in the bundle")
	}
	block, _ := pem.Decode(certificate)
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parsed.Verify(x509.VerifyOptions{DNSName: host, Roots: pool, CurrentTime: now})
	return err
}

// TestCertificatesAlwaysTrusted checks that for two years, the API server trusts all replicas even if one
// reads its copy twelve hours late.
func TestCertificatesAlwaysTrusted(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	data, changed, err := Renew(now, host, nil)
	if err != nil || !changed {
		t.Fatal(changed, err)
	}
	lateData, used := data, map[string]bool{}
	for end := now.AddDate(2, 0, 0); now.Before(end); now = now.Add(6 * time.Hour) {
		late := lateData
		lateData = data
		if data, changed, err = Renew(now, host, data); err != nil {
			t.Fatal(err)
		}
		if changed == maps.EqualFunc(data, lateData, bytes.Equal) {
			t.Fatalf("at %s: changed is %t", now, changed)
		}
		used[string(data["tls.crt"])] = true
		for _, serving := range []map[string][]byte{data, lateData, late} {
			for _, trusting := range []map[string][]byte{data, lateData, late} {
				if err := trusts(t, Trusted(trusting), serving["tls.crt"], now); err != nil {
					t.Fatalf("at %s: %v", now, err)
				}
			}
		}
		if certificates := bytes.Count(Trusted(data), []byte("BEGIN")); certificates > 3 {
			t.Fatalf("at %s: %d certificates are trusted", now, certificates)
		}
	}
	if len(used) != 13 {
		t.Errorf("%d certificates within two years, want 13: one per 60 days", len(used))
	}
}

func TestRecreated(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	good, _, err := Renew(now, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	another, _, err := Renew(now, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		now  time.Time
		host string
		data map[string][]byte
		want bool
	}{
		"fine":                       {now.Add(59 * 24 * time.Hour), host, good, false},
		"expired":                    {now.AddDate(1, 0, 0), host, good, true},
		"not yet valid":              {now.AddDate(-1, 0, 0), host, good, true},
		"other host name":            {now, "other.example.svc", good, true},
		"no key":                     {now, host, map[string][]byte{"tls.crt": good["tls.crt"]}, true},
		"key of another certificate": {now, host, map[string][]byte{"tls.crt": good["tls.crt"], "tls.key": another["tls.key"]}, true},
		"no certificate":             {now, host, map[string][]byte{"tls.crt": []byte("x"), "tls.key": good["tls.key"]}, true},
	} {
		data, changed, err := Renew(test.now, test.host, test.data)
		if err != nil || changed != test.want {
			t.Errorf("%s: changed = %t, %v", name, changed, err)
			continue
		}
		if left := remaining(test.now, test.host, data["tls.crt"], data["tls.key"]); left < usedFor {
			t.Errorf("%s: remaining validity of the current certificate = %s", name, left)
		}
		if len(data["next.crt"]) > 0 {
			t.Errorf("%s: a successor already exists", name)
		}
	}
}

// Error messages do not depend on the time.
func TestVerify(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	data, _, err := Renew(now, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	another, _, err := Renew(now, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(data["tls.crt"], data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	ended := ErrExpired.Error() + `: "CN=millrace-webhook `
	for name, test := range map[string]struct {
		after  time.Duration
		host   string
		bundle []byte
		want   string
	}{
		"trusted":                      {0, host, slices.Concat(another["tls.crt"], data["tls.crt"]), ""},
		"signed by another CA":         {0, host, another["tls.crt"], "x509: certificate signed by unknown authority"},
		"no bundle":                    {0, host, nil, "the bundle has no certificate"},
		"certificate for another host": {0, "other.example.svc", data["tls.crt"], "x509: certificate is valid for " + host},
		"ended":                        {lifetime + time.Second, host, data["tls.crt"], ended},
		"ended before now":             {lifetime + time.Hour, host, data["tls.crt"], ended},
		"not begun":                    {-2 * skew, host, data["tls.crt"], ended},
	} {
		err := Verify(now.Add(test.after), test.host, &pair, test.bundle)
		if (err == nil) != (test.want == "") || err != nil && !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	first, second := Verify(now.Add(lifetime+time.Second), host, &pair, data["tls.crt"]), Verify(now.Add(lifetime+time.Hour), host, &pair, data["tls.crt"])
	if first.Error() != second.Error() {
		t.Errorf("the first result is %q, the second %q", first, second)
	}
}
