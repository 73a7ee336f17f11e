// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// subject is a proxy: one process on one CPU, with a port for HTTP and one for HTTPS.
type subject struct {
	name        string
	http, https int
	start       func(w *world, s *subject) (*process, error)
	process     *process
}

const (
	ours    = "millrace"
	haproxy = "HAProxy"
	nginx   = "nginx"
	caddy   = "Caddy"
)

// subjects do the same work: match the host, set client headers, reuse connections, no access logs.
var subjects = []*subject{
	{name: ours, http: 10080, https: 10443, start: startOurs},
	{name: haproxy, http: 11080, https: 11443, start: startHAProxy},
	{name: nginx, http: 12080, https: 12443, start: startNginx},
	{name: caddy, http: 13080, https: 13443, start: startCaddy},
}

func (w *world) startAll(chosen *regexp.Regexp) error {
	backend, err := w.startBackend()
	if err != nil {
		return err
	}
	if err := w.reachable(backend, proxySpace, net.JoinHostPort(backendAddress, strconv.Itoa(backendPort))); err != nil {
		return err
	}
	for _, s := range subjects {
		if !chosen.MatchString(s.name) {
			continue
		}
		if s.process, err = s.start(w, s); err != nil {
			return fmt.Errorf("start %s: %w", s.name, err)
		}
		for _, port := range []int{s.http, s.https} {
			if err := w.reachable(s.process, clientSpace, net.JoinHostPort(proxyAddress, strconv.Itoa(port))); err != nil {
				return fmt.Errorf("start %s: %w", s.name, err)
			}
		}
	}
	return nil
}

func (w *world) startBackend() (*process, error) {
	configuration, err := w.write("backend.conf", fmt.Sprintf(`
daemon off; worker_processes 1; pid backend.pid; error_log stderr; user root;
events { worker_connections 4096; }
http {
	access_log off; default_type text/plain;
	server {
		listen %s:%d backlog=4096;
		keepalive_requests 100000000; keepalive_timeout 600s;
		location / { add_header X-Frame-Options DENY; add_header Cache-Control no-cache; return 200 "%s"; }
	}
}`, backendAddress, backendPort, strings.Repeat("0123456789abcde\\n", 64)))
	if err != nil {
		return nil, err
	}
	return w.start("backend", backendSpace, w.others, "nginx", "-e", "stderr", "-p", w.directory, "-c", configuration)
}

func startHAProxy(w *world, s *subject) (*process, error) {
	configuration, err := w.write("haproxy.cfg", fmt.Sprintf(`
global
	nbthread 1
	maxconn 4000
defaults
	mode http
	timeout connect 3s
	timeout client 180s
	timeout server 60s
	timeout http-request 10s
	option forwardfor
	http-reuse always
frontend http
	bind %[1]s:%[2]d backlog 4096
	bind %[1]s:%[3]d ssl crt %[4]s alpn h2,http/1.1 backlog 4096
	http-request set-header X-Forwarded-Proto https if { ssl_fc }
	http-request set-header X-Forwarded-Proto http if !{ ssl_fc }
	http-request set-header X-Forwarded-Host %%[req.hdr(Host)]
	use_backend shop if { req.hdr(host),field(1,:) -i %[5]s }
backend shop
	server one %[6]s:%[7]d
`, proxyAddress, s.http, s.https, w.pair, hostname, backendAddress, backendPort))
	if err != nil {
		return nil, err
	}
	return w.start("haproxy", proxySpace, w.processor, "haproxy", "-db", "-f", configuration)
}

func startNginx(w *world, s *subject) (*process, error) {
	configuration, err := w.write("nginx.conf", fmt.Sprintf(`
daemon off; worker_processes 1; pid nginx.pid; error_log stderr; user root;
events { worker_connections 8000; }
http {
	access_log off;
	upstream shop { server %[6]s:%[7]d; keepalive 512; keepalive_requests 100000000; }
	server {
		listen %[1]s:%[2]d backlog=4096;
		listen %[1]s:%[3]d ssl http2 backlog=4096;
		server_name %[8]s;
		ssl_certificate %[4]s; ssl_certificate_key %[5]s; ssl_protocols TLSv1.2 TLSv1.3;
		keepalive_requests 100000000;
		location / {
			proxy_pass http://shop; proxy_http_version 1.1; proxy_set_header Connection "";
			proxy_set_header Host $host;
			proxy_set_header X-Forwarded-For $remote_addr;
			proxy_set_header X-Forwarded-Host $host;
			proxy_set_header X-Forwarded-Proto $scheme;
		}
	}
}`, proxyAddress, s.http, s.https, w.chain, w.key, backendAddress, backendPort, hostname))
	if err != nil {
		return nil, err
	}
	return w.start("nginx", proxySpace, w.processor, "nginx", "-e", "stderr", "-p", w.directory, "-c", configuration)
}

func startCaddy(w *world, s *subject) (*process, error) {
	configuration, err := w.write("Caddyfile", fmt.Sprintf(`
{
	admin off
	auto_https off
	persist_config off
	http_port %[2]d
	https_port %[3]d
	default_bind %[1]s
	servers {
		protocols h1 h2
	}
}
http://%[4]s:%[2]d {
	reverse_proxy %[7]s:%[8]d {
		transport http {
			keepalive_idle_conns_per_host 512
		}
	}
}
https://%[4]s:%[3]d {
	tls %[5]s %[6]s
	reverse_proxy %[7]s:%[8]d {
		transport http {
			keepalive_idle_conns_per_host 512
		}
	}
}
`, proxyAddress, s.http, s.https, hostname, w.chain, w.key, backendAddress, backendPort))
	if err != nil {
		return nil, err
	}
	return w.start("caddy", proxySpace, w.processor,
		filepath.Join(w.programs, "caddy"), "run", "--adapter", "caddyfile", "--config", configuration)
}
