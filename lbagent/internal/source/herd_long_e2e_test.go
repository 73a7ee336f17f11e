// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package source

import (
	"bufio"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// agentsVariable is the number of agents.
const (
	agentsVariable = "MILLRACE_AGENTS"
	patience       = 3 * time.Second
	agentUser      = "agent"
)

// herd is a number of agents of one API server.
type herd struct {
	t       *testing.T
	api     *controlplane.Server
	objects *controlplane.Objects
	sources []*Source
	// lists and resumed count requests for all objects of a kind, and for changes since a version.
	lists, resumed, others atomic.Int64
}

type counting struct {
	http.RoundTripper
	of *herd
}

func (c counting) RoundTrip(request *http.Request) (*http.Response, error) {
	query := request.URL.Query()
	switch {
	case query.Get("sendInitialEvents") == "true":
		c.of.lists.Add(1)
	case query.Get("watch") != "":
		c.of.resumed.Add(1)
	default:
		c.of.others.Add(1)
	}
	return c.RoundTripper.RoundTrip(request)
}

func newHerd(t *testing.T, count int) *herd {
	t.Helper()
	api := controlplane.Start(t, "../../..", agentUser)
	h := &herd{t: t, api: api, objects: api.Install(t, api.Admin(), client.Options{})}
	h.objects.MakeNamespaces(t, millracev1beta1.BGPNamespace, "millrace-system")
	h.objects.Make(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: agentUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: agentUser}},
	})
	for range count {
		config := api.User(agentUser)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, h} })
		clients, err := NewClientsForConfig(config)
		controlplane.Must(t, err)
		h.sources = append(h.sources, run(t, clients))
	}
	for _, source := range h.sources {
		awaitChange(t, source, "the first lists")
	}
	h.awaitWatches()
	return h
}

// watches returns the active watches by kind.
func (s *Source) watches() map[string]*trackedWatch {
	s.tracker.mu.Lock()
	defer s.tracker.mu.Unlock()
	there := maps.Clone(s.tracker.watches)
	maps.DeleteFunc(there, func(_ string, f *trackedWatch) bool { return f == nil })
	return there
}

func (h *herd) await(what string, holds func(*Source) bool) {
	h.t.Helper()
	controlplane.Eventually(h.t, time.Minute, func(context.Context) error {
		for i, source := range h.sources {
			if !holds(source) {
				return fmt.Errorf("agent %d: timeout: %s", i, what)
			}
		}
		return nil
	})
}

// cost is the cost of all confirmations.
type cost struct {
	// connections are the new connections, watches the new or lost watches.
	connections, watches, failed int
	longest                      time.Duration
	// cpu is the API server's processor time in seconds.
	cpu float64
}

// confirm runs Confirm of all agents concurrently; before is called first, meanwhile after their start.
func (h *herd) confirm(name string, before, meanwhile func()) cost {
	h.t.Helper()
	type state struct {
		watches map[string]*trackedWatch
		open    []*connection
	}
	had := make([]state, len(h.sources))
	for i, s := range h.sources {
		s.clients.connections.mu.Lock()
		had[i] = state{s.watches(), slices.Clone(s.clients.connections.open)}
		s.clients.connections.mu.Unlock()
	}
	var c cost
	cpu := h.cpu()
	h.lists.Store(0)
	h.resumed.Store(0)
	h.others.Store(0)
	before()
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, s := range h.sources {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(h.t.Context(), patience)
			defer cancel()
			began := time.Now()
			err := s.Confirm(ctx)
			mu.Lock()
			defer mu.Unlock()
			c.longest = max(c.longest, time.Since(began))
			if err != nil {
				c.failed++
				if c.failed == 1 {
					h.t.Logf("%s: %v", name, err)
				}
			}
		})
	}
	meanwhile()
	all.Wait()
	for i, s := range h.sources {
		now := s.watches()
		for kind, f := range had[i].watches {
			if now[kind] != f {
				c.watches++
			}
		}
		s.clients.connections.mu.Lock()
		for _, conn := range s.clients.connections.open {
			if !slices.Contains(had[i].open, conn) {
				c.connections++
			}
		}
		s.clients.connections.mu.Unlock()
	}
	c.cpu = h.cpu() - cpu
	h.t.Logf("%s: of %d agents %d failed, the longest took %s; reconnects %d, watches ended %d, lists %d, watches %d, others %d, API server %.2f s of CPU",
		name, len(h.sources), c.failed, c.longest.Round(time.Millisecond), c.connections, c.watches,
		h.lists.Load(), h.resumed.Load(), h.others.Load(), c.cpu)
	return c
}

func (h *herd) cpu() float64 {
	h.t.Helper()
	client, err := rest.HTTPClientFor(h.api.Admin())
	controlplane.Must(h.t, err)
	response, err := client.Get(h.api.Admin().Host + "/metrics")
	controlplane.Must(h.t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		h.t.Fatal(response.Status)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if text, is := strings.CutPrefix(lines.Text(), "process_cpu_seconds_total "); is {
			value, err := strconv.ParseFloat(text, 64)
			controlplane.Must(h.t, err)
			return value
		}
	}
	h.t.Fatal("process_cpu_seconds_total is missing")
	return 0
}

// hog occupies the only seat of a priority level without shares, by a request whose webhook does not answer.
func (h *herd) hog(agent *kubernetes.Clientset) (release func()) {
	h.t.Helper()
	called, done := make(chan struct{}, 1), make(chan struct{})
	webhook := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case called <- struct{}{}:
		default:
		}
		<-done
	}))
	configuration := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hog"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "hog.example.com", TimeoutSeconds: new(int32(30)), FailurePolicy: new(admissionv1.Fail),
			SideEffects: new(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{
				URL:      &webhook.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw}),
			},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	h.objects.Make(h.t, configuration)
	var hogs sync.WaitGroup
	ctx, cancel := context.WithCancel(h.t.Context())
	hogs.Go(func() {
		// The API server uses a new webhook after a delay.
		for ctx.Err() == nil {
			_, _ = agent.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "hog-"}}, metav1.CreateOptions{})
		}
	})
	select {
	case <-called:
	case <-time.After(time.Minute):
		h.t.Fatal("the webhook was not called")
	}
	return func() {
		h.t.Helper()
		cancel()
		close(done)
		hogs.Wait()
		webhook.CloseClientConnections()
		webhook.Close()
		controlplane.Must(h.t, h.objects.Delete(h.t.Context(), configuration))
	}
}

// starve leaves no seat for agents: requests are queued, or rejected with 429.
func (h *herd) starve(response flowcontrolv1.LimitResponse) (feed func()) {
	h.t.Helper()
	name := "starved-" + strings.ToLower(string(response.Type))
	level := &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type:    flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: new(int32(0)), LendablePercent: new(int32(0)), BorrowingLimitPercent: new(int32(0)), LimitResponse: response},
		},
	}
	schema := &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: name},
			MatchingPrecedence:         10,
			DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: agentUser}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"},
				}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
			}},
		},
	}
	h.objects.Make(h.t, level, schema)
	agent, err := kubernetes.NewForConfig(h.api.User(agentUser))
	controlplane.Must(h.t, err)
	release := func() {}
	if response.Type == flowcontrolv1.LimitResponseTypeReject {
		// One request passes without a seat, unless it is queued.
		release = h.hog(agent)
	}
	answered := func() bool {
		ctx, cancel := context.WithTimeout(h.t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := agent.CoreV1().Services("default").List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil
	}
	become := func(wanted bool) {
		h.t.Helper()
		controlplane.Eventually(h.t, time.Minute, func(context.Context) error {
			if answered() != wanted {
				return fmt.Errorf("agents receive responses: %t", !wanted)
			}
			return nil
		})
	}
	become(false)
	return func() {
		h.t.Helper()
		release()
		controlplane.Must(h.t, h.objects.Delete(h.t.Context(), schema))
		become(true)
		controlplane.Must(h.t, h.objects.Delete(h.t.Context(), level))
	}
}

// When many BGP sessions are re-established together, such as after the restart of a route reflector, all
// agents confirm at the same time. This must not add load to an overloaded API server.
func TestHerd(t *testing.T) {
	count := 50
	if text := os.Getenv(agentsVariable); text != "" {
		var err error
		count, err = strconv.Atoi(text)
		controlplane.Must(t, err)
	}
	h := newHerd(t, count)
	nothing := func() {}
	h.costsNothing(h.confirm("at rest", nothing, nothing), false)

	feed := h.starve(flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject})
	h.costsNothing(h.confirm("refused (429)", nothing, nothing), false)
	feed()
	h.awaitWatches()

	feed = h.starve(flowcontrolv1.LimitResponse{
		Type:    flowcontrolv1.LimitResponseTypeQueue,
		Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 64, HandSize: 6, QueueLengthLimit: 1000},
	})
	h.costsNothing(h.confirm("queued", nothing, nothing), false)
	h.objects.Make(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "new"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	})
	h.await("notified of a new Service", func(s *Source) bool {
		return slices.ContainsFunc(s.Snapshot().Services, func(service *corev1.Service) bool { return service.Name == "new" })
	})
	feed()
	h.awaitWatches()

	h.costsNothing(h.confirm("stopped for 5 s", h.stop, func() {
		// Longer than the agents wait.
		controlplane.Wait(t.Context(), 5*time.Second)
		controlplane.Must(t, h.api.Resume())
	}), true)
	h.awaitWatches()

	restarted := h.confirm("restarted", func() { controlplane.Must(t, h.api.Kill()) }, func() {
		controlplane.Must(t, h.api.Restart(t))
		h.awaitWatches()
	})
	if restarted.connections > 2*count {
		t.Errorf("%d agents opened %d connections", count, restarted.connections)
	}
}

// stop stops the API server and waits until it no longer answers.
func (h *herd) stop() {
	h.t.Helper()
	controlplane.Must(h.t, h.api.Pause())
	client, err := rest.HTTPClientFor(h.api.Admin())
	controlplane.Must(h.t, err)
	client.Timeout = 300 * time.Millisecond
	controlplane.Eventually(h.t, 10*time.Second, func(context.Context) error {
		response, err := client.Get(h.api.Admin().Host + "/readyz")
		if err != nil {
			return nil
		}
		_ = response.Body.Close()
		return errors.New("the API server still responds")
	})
}

func (h *herd) awaitWatches() {
	h.t.Helper()
	h.await("all kinds watched", func(s *Source) bool { return len(s.watches()) == len(kinds) })
}

// costsNothing verifies that confirmations caused no new connections and watches, and that they failed if
// expected.
func (h *herd) costsNothing(c cost, fail bool) {
	h.t.Helper()
	if c.failed > 0 != fail || c.connections != 0 || c.watches != 0 {
		h.t.Errorf("%d agents failed; %d connections and %d watches were re-established", c.failed, c.connections, c.watches)
	}
}
