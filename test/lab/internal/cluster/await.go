// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/pki"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

const (
	// apiTimeout and nodesTimeout bound a start on a slow and busy machine.
	apiTimeout   = 2 * time.Minute
	nodesTimeout = 3 * time.Minute
	pollInterval = 50 * time.Millisecond
)

var errNotFound = errors.New("not found")

func (l *Lab) client() (*http.Client, error) {
	keys := l.KeyDir()
	certificate, err := tls.LoadX509KeyPair(pki.CertFile(keys, config.Admin), pki.KeyFile(keys, config.Admin))
	if err != nil {
		return nil, fmt.Errorf("read the admin's certificate: %w", err)
	}
	authority, err := os.ReadFile(pki.CAFile(keys))
	if err != nil {
		return nil, fmt.Errorf("read the cluster's authority: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return &http.Client{Transport: &http.Transport{
		DialContext:     inControlPlane,
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}},
	}}, nil
}

func (l *Lab) get(ctx context.Context, client *http.Client, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.Server()+path, nil)
	if err != nil {
		return nil, err
	}
	return doRequest(client, request)
}

func doRequest(client *http.Client, request *http.Request) (io.ReadCloser, error) {
	method, path := request.Method, request.URL.Path
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		if response.StatusCode == http.StatusNotFound {
			return nil, fmt.Errorf("%s %s: %w", method, path, errNotFound)
		}
		return nil, fmt.Errorf("%s %s: %s", method, path, response.Status)
	}
	return response.Body, nil
}

func (l *Lab) awaitAPI(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	client, err := l.client()
	if err != nil {
		return err
	}
	for {
		body, err := l.get(ctx, client, "/readyz")
		if err == nil {
			return body.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server is not ready: %w: see %s", err, l.logs("cp"))
		case <-time.After(pollInterval):
		}
	}
}

type node struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		Conditions []struct {
			Type              string    `json:"type"`
			Status            string    `json:"status"`
			LastHeartbeatTime time.Time `json:"lastHeartbeatTime"`
		} `json:"conditions"`
	} `json:"status"`
}

func (n node) ready() (bool, time.Time) {
	for _, condition := range n.Status.Conditions {
		if condition.Type == "Ready" {
			return condition.Status == "True", condition.LastHeartbeatTime
		}
	}
	return false, time.Time{}
}

func (l *Lab) heartbeat(ctx context.Context, name string) (time.Time, error) {
	client, err := l.client()
	if err != nil {
		return time.Time{}, err
	}
	body, err := l.get(ctx, client, "/api/v1/nodes/"+name)
	if errors.Is(err, errNotFound) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	defer body.Close()
	var found node
	if err := json.NewDecoder(body).Decode(&found); err != nil {
		return time.Time{}, fmt.Errorf("read node %s: %w", name, err)
	}
	_, last := found.ready()
	return last, nil
}

func (l *Lab) awaitNodes(ctx context.Context, ready func(name string)) error {
	waiting := map[string]time.Time{}
	for _, node := range l.Topology.WithRole(topology.RoleNode) {
		waiting[node.Name] = time.Time{}
	}
	return l.awaitReady(ctx, waiting, ready)
}

// awaitReady waits until each node is Ready with another heartbeat than the given one, which is from before
// its stop.
func (l *Lab) awaitReady(ctx context.Context, waiting map[string]time.Time, ready func(name string)) error {
	ctx, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	client, err := l.client()
	if err != nil {
		return err
	}
	for {
		err := l.watchNodes(ctx, client, func(found node) bool {
			name := found.Metadata.Name
			before, awaited := waiting[name]
			if isReady, at := found.ready(); awaited && isReady && !at.Equal(before) {
				delete(waiting, name)
				ready(name)
			}
			return len(waiting) > 0
		})
		if len(waiting) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			for name := range waiting {
				return fmt.Errorf("node %s is not Ready (%w): see %s", name, errors.Join(ctx.Err(), err), l.logs(name))
			}
		case <-time.After(pollInterval):
		}
	}
}

// watchNodes calls f for each node and each change until f returns false or the watch ends.
func (l *Lab) watchNodes(ctx context.Context, client *http.Client, f func(node) bool) error {
	// A watch without a resource version starts with all objects.
	body, err := l.get(ctx, client, "/api/v1/nodes?watch=1")
	if err != nil {
		return err
	}
	defer body.Close()
	decoder := json.NewDecoder(body)
	for {
		var event struct {
			Object node `json:"object"`
		}
		if err := decoder.Decode(&event); err != nil {
			return fmt.Errorf("watch nodes: %w", err)
		}
		if !f(event.Object) {
			return nil
		}
	}
}
