// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

func api(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("api", flag.ContinueOnError)
	path := flags.String("path", "/version", "what to get")
	timeout := flags.Duration("timeout", 10*time.Second, "when to give it up")
	if err := parse(flags, args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	get, err := apiClient()
	if err != nil {
		return err
	}
	body, err := get(ctx, *path)
	if _, writeErr := stdout.Write(body); writeErr != nil {
		return fmt.Errorf("print answer: %w", writeErr)
	}
	return err
}

// apiClient returns a function that gets a path from the API server. Its error includes the response.
func apiClient() (func(ctx context.Context, path string) ([]byte, error), error) {
	token, err := os.ReadFile(filepath.Join(serviceAccountDir, "token"))
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	authority, err := os.ReadFile(filepath.Join(serviceAccountDir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	server := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	return func(ctx context.Context, path string) ([]byte, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server+path, nil)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return body, fmt.Errorf("read answer: %w", err)
		}
		switch response.StatusCode {
		case http.StatusOK:
			return body, nil
		case http.StatusNotFound:
			return body, fmt.Errorf("get %s: %w", path, errNotFound)
		default:
			return body, fmt.Errorf("get %s: answer is %s", path, response.Status)
		}
	}, nil
}

var errNotFound = errors.New("not found")
