// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/api/live"
)

func believes(bundle, certificate, key []byte, now time.Time, host string, usage x509.ExtKeyUsage) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

// TestLiveCertificatesAlwaysTrusted checks that for two years, all trust each other even if one reads its
// Secret twelve hours late.
func TestLiveCertificatesAlwaysTrusted(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	data, changed, err := RenewLive(now, host, nil)
	if err != nil || !changed {
		t.Fatal(changed, err)
	}
	lateData, used := data, map[string]bool{}
	for end := now.AddDate(2, 0, 0); now.Before(end); now = now.Add(6 * time.Hour) {
		late := lateData
		lateData = data
		if data, changed, err = RenewLive(now, host, data); err != nil {
			t.Fatal(err)
		}
		if changed == maps.EqualFunc(data, lateData, bytes.Equal) {
			t.Fatalf("at %s: changed is %t", now, changed)
		}
		used[string(LiveAgents(data)["tls.crt"])] = true
		if maps.EqualFunc(data, late, bytes.Equal) && now.Hour() > 0 {
			continue
		}
		for _, one := range []map[string][]byte{data, lateData, late} {
			for _, other := range []map[string][]byte{data, lateData, late} {
				api, agents := LiveAPI(one), LiveAgents(other)
				for what, err := range map[string]error{
					"the API server":     believes(LiveTrusted(other), api["tls.crt"], api["tls.key"], now, host, x509.ExtKeyUsageServerAuth),
					"an agent":           believes(agents["ca.crt"], api["client.crt"], api["client.key"], now, live.ClientName, x509.ExtKeyUsageClientAuth),
					"the aggregated API": believes(api["ca.crt"], agents["tls.crt"], agents["tls.key"], now, live.AgentName, x509.ExtKeyUsageServerAuth),
				} {
					if err != nil {
						t.Fatalf("at %s: %s: %v", now, what, err)
					}
				}
			}
		}
		if bundle := bytes.Count(LiveTrusted(data), []byte("BEGIN")); bundle > 3 {
			t.Fatalf("at %s: %d trusted CAs", now, bundle)
		}
	}
	if len(used) != 13 {
		t.Errorf("%d generations within two years, want 13: one per 60 days", len(used))
	}
}

// The certificate of nodes is valid for agents only, not for the aggregated API. The CA's key is discarded.
func TestLiveKeysOfNodes(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	data, _, err := RenewLive(now, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	agents, bundle := LiveAgents(data), LiveTrusted(data)
	if len(agents) != 3 {
		t.Errorf("Secret of the agents has %d keys", len(agents))
	}
	as := func(host string, usage x509.ExtKeyUsage) error {
		return believes(bundle, agents["tls.crt"], agents["tls.key"], now, host, usage)
	}
	if err := as(live.AgentName, x509.ExtKeyUsageServerAuth); err != nil {
		t.Error(err)
	}
	for _, test := range []struct {
		host  string
		usage x509.ExtKeyUsage
	}{
		{live.ClientName, x509.ExtKeyUsageClientAuth}, {live.AgentName, x509.ExtKeyUsageClientAuth},
		{host, x509.ExtKeyUsageServerAuth}, {live.ClientName, x509.ExtKeyUsageServerAuth},
	} {
		if as(test.host, test.usage) == nil {
			t.Errorf("the node certificate is valid for %s, usage %d", test.host, test.usage)
		}
	}
	keys := 0
	for _, content := range data {
		keys += bytes.Count(content, []byte("BEGIN PRIVATE KEY"))
	}
	if keys != 3 {
		t.Errorf("%d keys remain, want those of three certificates", keys)
	}
}

func TestLiveCertificatesRecreated(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	good, _, err := RenewLive(now, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	another, _, err := RenewLive(now, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	for key := range good {
		for what, content := range map[string][]byte{"nothing": nil, "no PEM": []byte("x"), "another's": another[key]} {
			data := maps.Clone(good)
			data[key] = content
			renewed, changed, err := RenewLive(now.Add(time.Hour), host, data)
			if err != nil || !changed {
				t.Errorf("%s is %s: changed = %t, %v", key, what, changed, err)
			}
			if left := remainingOfAll(now.Add(time.Hour), host, aggregated(host).read(renewed, liveCurrent)); left < usedFor {
				t.Errorf("%s is %s: remaining validity of the current certificates = %s", key, what, left)
			}
		}
	}
	if _, changed, _ := RenewLive(now.Add(time.Hour), host, good); changed {
		t.Error("a valid certificate was renewed")
	}
	if _, changed, _ := RenewLive(now.Add(time.Hour), "other.example.svc", good); !changed {
		t.Error("the certificate was not renewed for another host")
	}
}
