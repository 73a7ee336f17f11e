// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/pki"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// Names of identities and of their key files.
const (
	// Admin is the identity of the lab's user.
	Admin = "admin"

	apiServer         = "kube-apiserver"
	apiKubeletClient  = "kube-apiserver-kubelet-client"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	proxy             = "kube-proxy"
	// frontProxy is the API server's identity for aggregated APIs.
	frontProxy = "front-proxy-client"

	// ServiceAccounts is the key pair of service account tokens.
	ServiceAccounts = "service-accounts"
)

// Identities returns the identities that need a certificate.
func (l Lab) Identities() []pki.Identity {
	cp := l.Topology.ControlPlane()
	identities := []pki.Identity{
		{Name: Admin, User: "admin", Groups: []string{"system:masters"}},
		{Name: apiKubeletClient, User: apiKubeletClient, Groups: []string{"system:masters"}},
		{Name: controllerManager, User: "system:kube-controller-manager"},
		{Name: scheduler, User: "system:kube-scheduler"},
		{Name: proxy, User: "system:kube-proxy"},
		{Name: frontProxy, User: frontProxy},
		{
			Name: apiServer, User: apiServer,
			Hosts: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			Addresses: []netip.Addr{
				cp.AddrV4(), cp.AddrV6(), topology.APIServiceV4, topology.APIServiceV6,
				netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback(),
			},
		},
	}
	if project := l.CNI.Project(); project != "" {
		identities = append(identities, pki.Identity{Name: project, User: project})
	}
	for _, node := range l.Topology.WithRole(topology.RoleNode) {
		identities = append(identities, pki.Identity{
			Name: node.Name, User: "system:node:" + node.Name, Groups: []string{"system:nodes"},
			Hosts: []string{node.Name}, Addresses: []netip.Addr{node.AddrV4(), node.AddrV6()},
		})
	}
	return identities
}

// Kubeconfigs returns the kubeconfig of each client identity.
func (l Lab) Kubeconfigs() ([]File, error) {
	var files []File
	for _, identity := range l.Identities() {
		if identity.Name == apiServer || identity.Name == apiKubeletClient || identity.Name == frontProxy {
			continue
		}
		file, err := render(l.Kubeconfig(identity.Name), "kubeconfig.yaml", map[string]any{
			"Server":   l.Server(),
			"CAFile":   pki.CAFile(l.KeyDir()),
			"User":     identity.Name,
			"CertFile": pki.CertFile(l.KeyDir(), identity.Name),
			"KeyFile":  pki.KeyFile(l.KeyDir(), identity.Name),
		})
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// Kubeconfig returns the file of an identity's kubeconfig.
func (l Lab) Kubeconfig(identity string) string {
	return filepath.Join(l.KeyDir(), identity+".kubeconfig")
}

// controlPlane runs etcd, the three servers and kube-proxy, without leader election.
func (l Lab) controlPlane(spec machine.Spec) (machine.Spec, []File, error) {
	etcd := fmt.Sprintf("127.0.0.1:%d", etcdPort)
	ready := &machine.Probe{
		URL:    fmt.Sprintf("https://127.0.0.1:%d/readyz", apiPort),
		CAFile: pki.CAFile(l.KeyDir()),
	}
	spec.Services = []machine.Service{
		{
			Name:    "etcd",
			Command: []string{l.Kubernetes(), "etcd", "--dir", filepath.Join(spec.Dir, "etcd"), "--listen", "http://" + etcd},
			Ready:   &machine.Probe{Dial: "tcp " + etcd},
		},
		{Name: apiServer, Command: l.apiServerCommand("http://" + etcd), After: []string{"etcd"}, Ready: ready},
		{
			Name:    controllerManager,
			After:   []string{apiServer},
			Command: l.controllerManagerCommand(),
		},
		{
			Name:  scheduler,
			After: []string{apiServer},
			Command: []string{
				l.Kubernetes(), "kube-scheduler",
				"--kubeconfig=" + l.Kubeconfig(scheduler),
				"--leader-elect=false",
				"--bind-address=127.0.0.1",
			},
		},
	}
	services := l.proxyServices(spec, ready)
	if len(services) == 0 {
		return spec, nil, nil
	}
	spec.Services = append(spec.Services, services...)
	files, err := renderAll(spec.Dir, []templateFile{l.proxyConfiguration()})
	return spec, files, err
}

func (l Lab) controllerManagerCommand() []string {
	command := []string{
		l.Kubernetes(), "kube-controller-manager",
		"--kubeconfig=" + l.Kubeconfig(controllerManager),
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		"--use-service-account-credentials",
		"--root-ca-file=" + pki.CAFile(l.KeyDir()),
		"--service-account-private-key-file=" + pki.KeyFile(l.KeyDir(), ServiceAccounts),
		// Scale tests create thousands of objects at once.
		"--kube-api-qps=200", "--kube-api-burst=400",
	}
	if l.NodeGrace == KubernetesTiming {
		return command
	}
	return append(command,
		"--node-monitor-grace-period="+l.NodeGrace.String(),
		// This bounds the detection of the grace period's end.
		"--node-monitor-period=1s",
	)
}

func (l Lab) apiServerCommand(etcd string) []string {
	keys, cp := l.KeyDir(), l.Topology.ControlPlane()
	return []string{
		l.Kubernetes(), "kube-apiserver",
		"--etcd-servers=" + etcd,
		"--bind-address=::",
		fmt.Sprintf("--secure-port=%d", apiPort),
		"--advertise-address=" + cp.AddrV4().String(),
		"--tls-cert-file=" + pki.CertFile(keys, apiServer),
		"--tls-private-key-file=" + pki.KeyFile(keys, apiServer),
		"--client-ca-file=" + pki.CAFile(keys),
		"--kubelet-certificate-authority=" + pki.CAFile(keys),
		"--kubelet-client-certificate=" + pki.CertFile(keys, apiKubeletClient),
		"--kubelet-client-key=" + pki.KeyFile(keys, apiKubeletClient),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki.PublicKeyFile(keys, ServiceAccounts),
		"--service-account-signing-key-file=" + pki.KeyFile(keys, ServiceAccounts),
		fmt.Sprintf("--service-cluster-ip-range=%s,%s", topology.ServicesV4, topology.ServicesV6),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--requestheader-client-ca-file=" + pki.CAFile(keys),
		"--requestheader-allowed-names=" + frontProxy,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki.CertFile(keys, frontProxy),
		"--proxy-client-key-file=" + pki.KeyFile(keys, frontProxy),
	}
}
