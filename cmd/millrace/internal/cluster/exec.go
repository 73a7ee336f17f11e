// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// agentContainer is the name of the container in config/lbagent/daemonset.yaml.
const agentContainer = "lbagent"

// Agents are the agents of a cluster, by node.
type Agents struct {
	config *rest.Config
	reader client.Reader
	pods   map[string]*corev1.Pod
}

// FindAgents lists the running agents.
func FindAgents(ctx context.Context, config Config) (*Agents, error) {
	restConfig, reader, err := config.client()
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, client.InNamespace(config.Namespace)); err != nil {
		return nil, config.explain(restConfig.Host, err)
	}
	found := report.AgentPods(pods.Items)
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: no agent runs in namespace %s; see --install-namespace", ErrNotInstalled, config.Namespace)
	}
	return &Agents{config: restConfig, reader: reader, pods: found}, nil
}

// AgentsOf returns the running agents among pods.
func AgentsOf(config Config, pods []corev1.Pod) (*Agents, error) {
	restConfig, reader, err := config.client()
	if err != nil {
		return nil, err
	}
	found := report.AgentPods(pods)
	maps.DeleteFunc(found, func(_ string, pod *corev1.Pod) bool { return pod.Status.Phase != corev1.PodRunning })
	return &Agents{config: restConfig, reader: reader, pods: found}, nil
}

// Nodes returns the nodes with an agent, sorted.
func (a *Agents) Nodes() []string {
	return slices.SortedFunc(maps.Keys(a.pods), report.CompareNames)
}

// Run runs the agent's program on a node, until it ends or ctx is done, and copies its output to out.
// Nothing is written after Run has returned. The remote program ends with this one, even a killed one.
func (a *Agents) Run(ctx context.Context, node string, args []string, out io.Writer) error {
	pod := a.pods[node]
	if pod == nil {
		return NoAgent(node, a.Nodes())
	}
	command := slices.Concat([]string{"/lbagent"}, withInstalledFlags(pod, args), []string{"--until-eof"})
	complaints, err := runCommand(ctx, a.config, containerCommand{pod, agentContainer, command, true}, out)
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, ErrForbidden):
		return err
	case complaints != "":
		return errors.New(strings.TrimPrefix(complaints, "lbagent: "))
	default:
		return err
	}
}

// containerCommand is a command in a container of a pod.
type containerCommand struct {
	pod       *corev1.Pod
	container string
	command   []string
	isOwn     bool
}

func (c containerCommand) explain(err error) error {
	of := Config{}
	if c.isOwn {
		of.Namespace = c.pod.Namespace
	}
	return of.explain("", err)
}

// NoAgent returns the error about a node without an agent; running are the nodes that have one.
func NoAgent(node string, running []string) error {
	return &apierror.Missing{Kind: "agent on node", Name: node, Names: running}
}

// runCommand copies the output to out, not after it has returned, and returns standard error. Standard input
// stays open as long as this program lives.
func runCommand(ctx context.Context, config *rest.Config, what containerCommand, out io.Writer) (stderrText string, err error) {
	executor, err := newExecutor(config, what)
	if err != nil {
		return "", fmt.Errorf("run a command in pod %s: %w", what.pod.Name, err)
	}
	stdin, hold := io.Pipe()
	defer hold.Close()
	// The streams are copied by goroutines that may outlive the call once ctx is done.
	var text strings.Builder
	stdout, stderr := &closableWriter{out: out}, &closableWriter{out: &text}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: stderr})
	stdout.close()
	stderr.close()
	stderrText = strings.TrimSpace(text.String())
	switch {
	case ctx.Err() != nil:
		return stderrText, ctx.Err()
	case err == nil:
		return stderrText, nil
	case apierrors.IsForbidden(err) || strings.Contains(err.Error(), "forbidden"):
		return stderrText, what.explain(err)
	default:
		return stderrText, fmt.Errorf("run a command in pod %s: %w", what.pod.Name, err)
	}
}

// closableWriter forwards writes until it is shut.
type closableWriter struct {
	mu     sync.Mutex
	out    io.Writer
	closed bool
}

func (g *closableWriter) Write(text []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0, io.ErrClosedPipe
	}
	return g.out.Write(text)
}

func (g *closableWriter) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// newExecutor uses WebSocket, or SPDY if the API server or a proxy does not support it, as kubectl does.
func newExecutor(config *rest.Config, what containerCommand) (remotecommand.Executor, error) {
	config = rest.CopyConfig(config)
	// The time limit of requests must not apply to streams.
	config.Timeout = 0
	target, err := what.url(config)
	if err != nil {
		return nil, err
	}
	websocket, err := remotecommand.NewWebSocketExecutor(config, "GET", target.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", target)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

func (c containerCommand) url(config *rest.Config) (*url.URL, error) {
	base, _, err := rest.DefaultServerURL(config.Host, "/api", corev1.SchemeGroupVersion, true)
	if err != nil {
		return nil, err
	}
	options := &corev1.PodExecOptions{Container: c.container, Command: c.command, Stdin: true, Stdout: true, Stderr: true}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	query, err := runtime.NewParameterCodec(scheme).EncodeParameters(options, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	target := base.JoinPath("api", "v1", "namespaces", c.pod.Namespace, "pods", c.pod.Name, "exec")
	target.RawQuery = query.Encode()
	return target, nil
}

// PodAt returns the pod with an address among the endpoints of a Service (namespace/name), or "".
func (a *Agents) PodAt(ctx context.Context, service, address string) (string, error) {
	namespace, name, _ := strings.Cut(service, "/")
	var endpoints discoveryv1.EndpointSliceList
	err := a.reader.List(ctx, &endpoints, client.InNamespace(namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: name})
	if err != nil {
		return "", Config{}.explain(a.config.Host, err)
	}
	for _, list := range endpoints.Items {
		for _, endpoint := range list.Endpoints {
			if slices.Contains(endpoint.Addresses, address) && endpoint.TargetRef != nil {
				return endpoint.TargetRef.Namespace + "/" + endpoint.TargetRef.Name, nil
			}
		}
	}
	return "", nil
}
