// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	probeInterval = 20 * time.Millisecond
	probeTimeout  = 2 * time.Second
)

// await probes until the condition holds or the timeout expires, if it is not zero, and reports whether it
// holds.
func await(probe Probe, timeout time.Duration) bool {
	start := time.Now()
	for !holds(probe) {
		if timeout > 0 && time.Since(start) > timeout {
			return false
		}
		time.Sleep(probeInterval)
	}
	return true
}

func holds(probe Probe) bool {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	if probe.URL != "" {
		return answers(ctx, probe)
	}
	network, address, _ := strings.Cut(probe.Dial, " ")
	connection, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return false
	}
	connection.Close()
	return true
}

func answers(ctx context.Context, probe Probe) bool {
	authority, err := os.ReadFile(probe.CAFile)
	if err != nil {
		return false
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, probe.URL, nil)
	if err != nil {
		return false
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}

func lookPath(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(path) {
		if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return found, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}
