// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	liveapi "github.com/millrace-lb/millrace/api/live"
)

// Certificates are the files of a directory, like a mounted Secret of type kubernetes.io/tls: tls.crt and
// tls.key are the agent's, ca.crt contains the authorities for the client's certificate.
type Certificates struct {
	directory string

	mu     sync.Mutex
	files  [3][]byte
	config *tls.Config
}

// NewCertificates returns Certificates that read the directory at each handshake.
func NewCertificates(directory string) *Certificates { return &Certificates{directory: directory} }

// Config returns the configuration of a server for clients whose certificate has the name and the key
// usage of the aggregated API.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current() },
		// Not used: each handshake gets another configuration.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return nil, errors.New("no certificate has been read")
		},
	}
}

func (c *Certificates) current() (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var files [3][]byte
	changed := false
	for i, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		content, err := os.ReadFile(filepath.Join(c.directory, name))
		if err != nil {
			return nil, fmt.Errorf("read the certificates of the aggregated API: %w (--live-certificates)", err)
		}
		files[i] = content
		changed = changed || !bytes.Equal(content, c.files[i])
	}
	if !changed {
		return c.config, nil
	}
	pair, err := tls.X509KeyPair(files[0], files[1])
	if err != nil {
		return nil, fmt.Errorf("read tls.crt and tls.key in %s: %w (--live-certificates)", c.directory, err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(files[2]) {
		return nil, fmt.Errorf("read ca.crt in %s: it has no certificate (--live-certificates)", c.directory)
	}
	c.files = files
	c.config = &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    authorities,
		// A resumed session would outlive its certificate authority.
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			return state.PeerCertificates[0].VerifyHostname(liveapi.ClientName)
		},
	}
	return c.config, nil
}
