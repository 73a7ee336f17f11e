// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"time"

	"github.com/millrace-lb/millrace/api/live"
)

// Files of one generation of the aggregated API's certificates. All are signed by one CA, whose key is
// discarded after signing.
const (
	fileCA                       = "ca.crt"
	fileAPI, fileAPIKey          = "api.crt", "api.key"
	fileClient, fileClientKey    = "client.crt", "client.key"
	fileAgents, fileAgentsKey    = "agents.crt", "agents.key"
	liveCurrent                  = "current."
	servedCertificate, servedKey = "tls.crt", "tls.key"
)

type role struct {
	certificate, key string
	host             string
	usage            x509.ExtKeyUsage
}

// roles returns the aggregated API as a server and as a client of agents, and agents as servers. Nodes hold
// the last one, which is not valid for clients or other names.
func roles(host string) []role {
	return []role{
		{fileAPI, fileAPIKey, host, x509.ExtKeyUsageServerAuth},
		{fileClient, fileClientKey, live.ClientName, x509.ExtKeyUsageClientAuth},
		{fileAgents, fileAgentsKey, live.AgentName, x509.ExtKeyUsageServerAuth},
	}
}

func aggregated(host string) generations {
	files := []string{fileCA}
	for _, role := range roles(host) {
		files = append(files, role.certificate, role.key)
	}
	return generations{
		current: liveCurrent, next: "next.", previous: "previous.", files: files, trusted: fileCA,
		remaining: func(now time.Time, files map[string][]byte) time.Duration { return remainingOfAll(now, host, files) },
		make:      func(now time.Time) (map[string][]byte, error) { return makeAll(now, host) },
	}
}

// RenewLive returns the aggregated API's Secret, with invalid content replaced, and whether it differs.
func RenewLive(now time.Time, host string, data map[string][]byte) (renewed map[string][]byte, changed bool, err error) {
	return aggregated(host).renew(now, data)
}

// LiveTrusted returns the CAs for caBundle.
func LiveTrusted(data map[string][]byte) []byte { return aggregated("").bundle(data) }

// LiveAPI returns the files of the aggregated API.
func LiveAPI(data map[string][]byte) map[string][]byte {
	return map[string][]byte{
		servedCertificate: data[liveCurrent+fileAPI], servedKey: data[liveCurrent+fileAPIKey],
		fileClient: data[liveCurrent+fileClient], fileClientKey: data[liveCurrent+fileClientKey],
		fileCA: LiveTrusted(data),
	}
}

// LiveAgents returns the files of agents.
func LiveAgents(data map[string][]byte) map[string][]byte {
	return map[string][]byte{
		servedCertificate: data[liveCurrent+fileAgents], servedKey: data[liveCurrent+fileAgentsKey], fileCA: LiveTrusted(data),
	}
}

func makeAll(now time.Time, host string) (map[string][]byte, error) {
	template, err := newTemplate(now, "millrace-live-ca")
	if err != nil {
		return nil, err
	}
	template.IsCA, template.MaxPathLenZero = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	authority, err := sign(template, nil)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	if files[fileCA], _, err = authority.encode(); err != nil {
		return nil, err
	}
	for _, role := range roles(host) {
		template, err := newTemplate(now, "millrace-live")
		if err != nil {
			return nil, err
		}
		template.DNSNames = []string{role.host}
		template.KeyUsage = x509.KeyUsageDigitalSignature
		template.ExtKeyUsage = []x509.ExtKeyUsage{role.usage}
		made, err := sign(template, authority)
		if err != nil {
			return nil, err
		}
		if files[role.certificate], files[role.key], err = made.encode(); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func remainingOfAll(now time.Time, host string, files map[string][]byte) time.Duration {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(files[fileCA]) {
		return 0
	}
	left := lifetime
	for _, role := range roles(host) {
		pair, err := tls.X509KeyPair(files[role.certificate], files[role.key])
		if err != nil {
			return 0
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{
			DNSName: role.host, Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{role.usage},
		}); err != nil {
			return 0
		}
		left = min(left, pair.Leaf.NotAfter.Sub(now))
	}
	return left
}
