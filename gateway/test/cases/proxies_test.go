// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/gateway/proxy"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

type proxies struct {
	t       *testing.T
	version int
	running map[model.Object]*proxy.Proxy
	// ports maps ports of VIPs to local ports. applied are the owners that listen in this step.
	ports     map[model.Object]map[uint32]uint32
	applied   []model.Object
	endpoints map[string][]*resource.Endpoint
}

func newProxies(t *testing.T) *proxies {
	return &proxies{
		t: t, running: map[model.Object]*proxy.Proxy{}, ports: map[model.Object]map[uint32]uint32{},
		endpoints: map[string][]*resource.Endpoint{},
	}
}

func (p *proxies) apply(services []*corev1.Service, result *model.Result) {
	p.version++
	p.applied = nil
	for _, found := range result.Proxies {
		var resources []*resource.Resource
		for _, of := range found.Backends {
			resources = append(resources, &resource.Resource{Name: model.EndpointsName(of), Kind: &resource.Resource_Endpoints{
				Endpoints: &resource.Endpoints{Endpoints: p.endpointsOf(services, of)},
			}})
		}
		resources = model.Merge(found.Resources, resources)
		for i, each := range resources {
			listener := each.GetListener()
			if listener == nil {
				continue
			}
			// The compiler's resources are shared with its next result.
			resources[i] = &resource.Resource{Name: each.GetName(), Kind: &resource.Resource_Listener{Listener: &resource.Listener{
				Port: listener.Port, TargetPort: p.port(found.Owner, listener.Port), Protocol: listener.Protocol, Hostname: listener.Hostname,
				Certificates: listener.Certificates, ClientValidation: listener.ClientValidation, TrustedHops: listener.TrustedHops,
				AnyServerName: listener.AnyServerName,
			}}}
		}
		if found.Listens() {
			p.applied = append(p.applied, found.Owner)
		}
		running := p.running[found.Owner]
		if running == nil {
			running = p.start()
			p.running[found.Owner] = running
		}
		running.Apply(proxy.Update{Version: strconv.Itoa(p.version), Whole: true, Resources: resources})
		for _, refused := range running.Refused() {
			p.t.Errorf("the proxy of %v rejects %v", found.Owner, refused)
		}
	}
}

func (p *proxies) start() *proxy.Proxy {
	settings := proxy.Defaults()
	settings.Address = "127.0.0.1"
	settings.DrainWait, settings.DrainGrace = time.Millisecond, time.Millisecond
	running := proxy.New(settings)
	p.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = running.Shutdown(ctx)
	})
	return running
}

func (p *proxies) port(owner model.Object, number uint32) uint32 {
	if p.ports[owner] == nil {
		p.ports[owner] = map[uint32]uint32{}
	}
	if p.ports[owner][number] == 0 {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			p.t.Fatal(err)
		}
		defer free.Close()
		p.ports[owner][number] = uint32(free.Addr().(*net.TCPAddr).Port)
	}
	return p.ports[owner][number]
}

func (p *proxies) address(name string, number uint32) (string, error) {
	var found []model.Object
	for _, owner := range p.applied {
		if name == "" || owner.Name == name {
			found = append(found, owner)
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%d owners match %q and have listeners", len(found), name)
	}
	at := p.ports[found[0]][number]
	if at == 0 {
		return "", fmt.Errorf("%v has no listener on port %d", found[0], number)
	}
	return fmt.Sprintf("127.0.0.1:%d", at), nil
}

// endpointsOf starts the endpoints of a Service port once.
func (p *proxies) endpointsOf(services []*corev1.Service, of model.ServicePort) []*resource.Endpoint {
	name := model.EndpointsName(of)
	if p.endpoints[name] != nil {
		return p.endpoints[name]
	}
	annotations := map[string]string{}
	for _, service := range services {
		if service.Namespace == of.Namespace && service.Name == of.Name && service.Annotations != nil {
			annotations = service.Annotations
		}
	}
	mode := struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
	}{Status: http.StatusOK}
	if text := annotations["test/mode"]; text != "" {
		if err := json.Unmarshal([]byte(text), &mode); err != nil {
			p.t.Fatalf("Service %s/%s: test/mode: %v", of.Namespace, of.Name, err)
		}
	}
	replicas, _ := strconv.Atoi(annotations["test/replicas"])
	for range max(replicas, 1) {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, _ := httputil.DumpRequest(r, true)
			for name, value := range mode.Headers {
				w.Header().Set(name, value)
			}
			w.Header().Set("X-Backend", of.Name)
			w.WriteHeader(mode.Status)
			_, _ = w.Write(text)
		}))
		if annotations["test/speaks"] == "tls" {
			server.StartTLS()
		} else {
			server.Start()
		}
		p.t.Cleanup(server.Close)
		at := server.Listener.Addr().(*net.TCPAddr)
		p.endpoints[name] = append(p.endpoints[name], &resource.Endpoint{Address: at.IP.String(), Port: uint32(at.Port)})
	}
	return p.endpoints[name]
}
