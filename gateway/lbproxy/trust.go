// SPDX-License-Identifier: Apache-2.0

package lbproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
)

// trust reads the controller's CAs at each handshake, because the kubelet replaces the file.
type trust struct {
	credentials.TransportCredentials
	file, name string
}

func newTrust(file, name string) credentials.TransportCredentials {
	// The embedded credentials only provide the server name; ClientHandshake is overridden.
	return trust{TransportCredentials: credentials.NewTLS(&tls.Config{ServerName: name}), file: file, name: name}
}

// ClientHandshake implements credentials.TransportCredentials.
func (t trust) ClientHandshake(ctx context.Context, _ string, connection net.Conn) (net.Conn, credentials.AuthInfo, error) {
	content, err := os.ReadFile(t.file)
	if err != nil {
		return nil, nil, fmt.Errorf("read the CAs of the controller: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(content) {
		return nil, nil, fmt.Errorf("there is no certificate in %s", t.file)
	}
	config := &tls.Config{RootCAs: roots, ServerName: t.name, MinVersion: tls.VersionTLS13}
	return credentials.NewTLS(config).ClientHandshake(ctx, t.name, connection)
}

// Clone implements credentials.TransportCredentials.
func (t trust) Clone() credentials.TransportCredentials {
	t.TransportCredentials = t.TransportCredentials.Clone()
	return t
}
