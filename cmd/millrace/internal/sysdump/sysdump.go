// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// Runner runs the agent's program on nodes; see cluster.Agents.
type Runner interface {
	Nodes() []string
	Run(ctx context.Context, node string, args []string, out io.Writer) error
}

// Cluster is the cluster to dump.
type Cluster struct {
	Objects            dynamic.Interface
	Clients            kubernetes.Interface
	Agents             Runner
	Why                error
	Namespace, Version string
}

// Limits bound a dump.
type Limits struct {
	// Whole limits the dump, Node all requests to one node, Request any other request.
	Whole, Node, Request time.Duration
	MaxConcurrent        int
	// LogBytes limits each log to its last bytes.
	LogBytes int64
}

// Usual are limits with which a dump of 100 nodes takes less than two minutes, even if some nodes hang.
var Usual = Limits{Whole: 110 * time.Second, Node: 20 * time.Second, Request: 20 * time.Second, MaxConcurrent: 16, LogBytes: 4 << 20}

// resources are dumped from the whole cluster. Secrets must never be added.
var resources = []string{
	"millrace.io/v1beta1/vippools", "millrace.io/v1beta1/vips", "millrace.io/v1beta1/lbpeers", "millrace.io/v1beta1/vipadvertisements",
	"millrace.io/v1beta1/lbnodes", "millrace.io/v1beta1/lbnodereports", "millrace.io/v1beta1/viproutes",
	"/v1/nodes", "/v1/namespaces", "/v1/services", "discovery.k8s.io/v1/endpointslices", "networking.k8s.io/v1/ingresses",
	"networking.k8s.io/v1/ingressclasses", "gateway.networking.k8s.io/v1/gatewayclasses", "gateway.networking.k8s.io/v1/gateways",
	"gateway.networking.k8s.io/v1/httproutes", "gateway.networking.k8s.io/v1/grpcroutes", "gateway.networking.k8s.io/v1/listenersets",
	"apiextensions.k8s.io/v1/customresourcedefinitions", "apiregistration.k8s.io/v1/apiservices",
	"admissionregistration.k8s.io/v1/validatingwebhookconfigurations", "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
}

// namespaced are dumped from Millrace's namespace only.
var namespaced = []string{
	"/v1/pods", "/v1/configmaps", "/v1/serviceaccounts", "apps/v1/deployments", "apps/v1/daemonsets", "apps/v1/replicasets",
	"apps/v1/controllerrevisions", "coordination.k8s.io/v1/leases", "policy/v1/poddisruptionbudgets", "networking.k8s.io/v1/networkpolicies",
}

// questions are the commands for each agent, by the file for the output.
var questions = map[string][]string{
	"maps.json": {"dump", "--output=json"}, "vips.json": {"vips"}, "bgp-peers.json": {"bgp", "peers"}, "bgp-routes.json": {"bgp", "routes"},
	"drops.json": {"drops"}, "counters.json": {"top"}, "preflight.json": {"preflight", "--installed"},
	// Limits the output to a few megabytes.
	"history.json": {"history", "--last=20000"},
}

// Dump returns the missing data; errors of single requests do not end the dump.
func Dump(ctx context.Context, of Cluster, limits Limits, now time.Time, out io.Writer) (missing []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limits.Whole)
	defer cancel()
	d := &dump{Cluster: of, limits: limits, archive: newArchive(out, now)}
	d.group.SetLimit(limits.MaxConcurrent)
	d.versions()
	for _, resource := range resources {
		d.begin(func() { d.list(ctx, resource, "") })
	}
	for _, resource := range namespaced {
		d.begin(func() { d.list(ctx, resource, of.Namespace) })
	}
	d.begin(func() { d.events(ctx) })
	d.logs(ctx)
	if of.Agents == nil {
		d.archive.recordFailure("agents", of.Why)
	} else {
		for _, node := range of.Agents.Nodes() {
			d.begin(func() { d.node(ctx, node) })
		}
	}
	_ = d.group.Wait()
	return d.archive.close()
}

type dump struct {
	Cluster
	limits  Limits
	archive *archive
	group   errgroup.Group
}

func (d *dump) begin(do func()) { d.group.Go(func() error { do(); return nil }) }

func (d *dump) versions() {
	versions := map[string]string{"millrace": d.Version}
	server, err := d.Clients.Discovery().ServerVersion()
	if err != nil {
		d.archive.recordFailure("version of the API server", err)
	} else {
		versions["kubernetes"] = server.GitVersion
	}
	content, err := json.MarshalIndent(versions, "", "  ")
	if err != nil {
		d.archive.recordFailure("versions", err)
		return
	}
	d.archive.add("versions.json", append(content, '\n'))
}

func (d *dump) list(ctx context.Context, resource, namespace string) {
	parts := strings.Split(resource, "/")
	name := parts[2]
	ctx, cancel := context.WithTimeout(ctx, d.limits.Request)
	defer cancel()
	kind := schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: name}
	objects, err := d.Objects.Resource(kind).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		// The cluster does not serve this kind.
		return
	}
	if err != nil {
		d.archive.recordFailure("objects/"+name, err)
		return
	}
	var out bytes.Buffer
	for i := range objects.Items {
		redact(&objects.Items[i])
		content, err := yaml.Marshal(objects.Items[i].Object)
		if err != nil {
			d.archive.recordFailure("objects/"+name, err)
			return
		}
		fmt.Fprintf(&out, "---\n%s", content)
	}
	d.archive.add("objects/"+name+".yaml", out.Bytes())
}

// events also dumps Events about cluster-scoped objects, which are in the namespace default.
func (d *dump) events(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, d.limits.Request)
	defer cancel()
	var out bytes.Buffer
	for _, namespace := range []string{d.Namespace, metav1.NamespaceDefault} {
		events, err := d.Clients.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			d.archive.recordFailure("events of namespace "+namespace, err)
			continue
		}
		for i := range events.Items {
			event := &events.Items[i]
			about := event.InvolvedObject
			fmt.Fprintf(&out, "%s %s %s %s/%s/%s x%d: %s\n", event.LastTimestamp.UTC().Format(time.RFC3339), event.Type, event.Reason,
				about.Kind, about.Namespace, about.Name, event.Count, event.Message)
		}
	}
	d.archive.add("events.txt", out.Bytes())
}

func (d *dump) logs(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, d.limits.Request)
	defer cancel()
	pods, err := d.Clients.CoreV1().Pods(d.Namespace).List(limited, metav1.ListOptions{})
	if err != nil {
		d.archive.recordFailure("logs", err)
		return
	}
	for i := range pods.Items {
		d.begin(func() { d.logsOf(ctx, &pods.Items[i]) })
	}
}

// logsOf has one time limit for all logs of a pod, because they are read from the same kubelet.
func (d *dump) logsOf(ctx context.Context, pod *corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, d.limits.Node)
	defer cancel()
	for _, status := range pod.Status.ContainerStatuses {
		for _, previous := range []bool{false, true} {
			if previous && status.RestartCount == 0 {
				continue
			}
			name := fmt.Sprintf("%s/%s.log", pod.Name, status.Name)
			if previous {
				name = fmt.Sprintf("%s/%s.previous.log", pod.Name, status.Name)
			}
			// The end of a log is more relevant than its start.
			lines := d.limits.LogBytes / 200
			content, err := d.Clients.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
				Container: status.Name, Previous: previous, Timestamps: true, TailLines: &lines, LimitBytes: &d.limits.LogBytes,
			}).DoRaw(ctx)
			if err != nil {
				d.archive.recordFailure(fmt.Sprintf("logs/%s of node %s", name, pod.Spec.NodeName), err)
				continue
			}
			d.archive.add("logs/"+name, content)
		}
	}
}

// node delays only its own part if the agent hangs, and lists it as missing.
func (d *dump) node(ctx context.Context, node string) {
	ctx, cancel := context.WithTimeout(ctx, d.limits.Node)
	defer cancel()
	for file, question := range questions {
		var out bytes.Buffer
		if err := d.Agents.Run(ctx, node, question, &out); err != nil {
			d.archive.recordFailure(fmt.Sprintf("node %s: %s", node, file), err)
			continue
		}
		d.archive.add(path.Join("nodes", node, file), out.Bytes())
	}
}
