// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	// operatorUser is the service account of config/rbac/operator, with the rights of an installation.
	operatorUser = "system:serviceaccount:millrace-system:millrace-operator"

	systemNamespace = "millrace-system"
	namespace       = "shop"
	otherNamespace  = "office"

	waitTimeout = 20 * time.Second
)

// environment is a real API server with Millrace's CRDs, and the built program.
type environment struct {
	server     *controlplane.Server
	client     *controlplane.Objects
	program    string
	kubeconfig string
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	ctrllog.SetLogger(logr.Discard())
	e := &environment{server: controlplane.Start(t, "..", operatorUser), program: filepath.Join(t.TempDir(), "operator")}
	build := append([]string{"build"}, asTheTest...)
	if output, err := exec.Command("go", append(build, "-o", e.program, "../cmd/operator")...).CombinedOutput(); err != nil {
		t.Fatalf("build the operator: %v: %s", err, output)
	}
	e.client = e.server.Install(t, e.server.Admin(), client.Options{})
	var err error
	e.kubeconfig, err = e.server.WriteKubeconfig(operatorUser)
	must(t, err)
	e.client.MakeNamespaces(t, systemNamespace, namespace, otherNamespace, millracev1beta1.BGPNamespace)
	e.client.MakeOf(t, "rbac/operator/role.yaml", "rbac/operator/role_binding.yaml", "webhook/role.yaml")
	return e
}

func (e *environment) clean(t *testing.T) {
	t.Helper()
	for _, namespace := range []string{namespace, otherNamespace} {
		services := &corev1.ServiceList{}
		must(t, e.client.List(t.Context(), services, client.InNamespace(namespace)))
		for i := range services.Items {
			services.Items[i].Finalizers = nil
			must(t, e.client.Update(t.Context(), &services.Items[i]))
			must(t, client.IgnoreNotFound(e.client.Delete(t.Context(), &services.Items[i])))
		}
		must(t, e.client.DeleteAllOf(t.Context(), &eventsv1.Event{}, client.InNamespace(namespace)))
	}
	for _, object := range []client.Object{
		&millracev1beta1.VIP{}, &millracev1beta1.VIPPool{}, &millracev1beta1.LBPeer{},
		&millracev1beta1.VIPAdvertisement{}, &millracev1beta1.LBNode{}, &millracev1beta1.LBNodeReport{}, &corev1.Node{},
	} {
		must(t, e.client.DeleteAllOf(t.Context(), object))
	}
	for _, object := range []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}, &eventsv1.Event{}} {
		must(t, e.client.DeleteAllOf(t.Context(), object, client.InNamespace(systemNamespace)))
	}
}

type instance struct {
	command *exec.Cmd
	exited  chan error
	log     string
	began   int64
}

func (e *environment) run(t *testing.T, arguments ...string) *instance {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "operator-*.log")
	must(t, err)
	defer log.Close()
	arguments = append([]string{
		"--kubeconfig=" + e.kubeconfig, "--metrics-bind-address=0", "--health-probe-bind-address=0",
		"--leader-election-namespace=" + systemNamespace,
		// Scenarios about the delay override it.
		"--release-delay=0",
	}, arguments...)
	i := &instance{command: exec.Command(e.program, arguments...), exited: make(chan error, 1), log: log.Name()}
	i.command.Stdout, i.command.Stderr = log, log
	// If the test is killed, the operator is killed with the thread that started it.
	i.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	i.start(t)
	t.Cleanup(func() { i.stop(t) })
	return i
}

func (i *instance) start(t *testing.T) {
	t.Helper()
	started, command := make(chan error), i.command
	go func() {
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			i.exited <- command.Wait()
		}
	}()
	must(t, <-started)
}

func (i *instance) stop(t *testing.T) {
	t.Helper()
	if i.command == nil {
		return
	}
	i.signal(t, syscall.SIGTERM)
	i.await(t, "stopped", false)
}

// signal first restarts an operator that exited because the API server did not answer its start.
func (i *instance) signal(t *testing.T, sent os.Signal) {
	t.Helper()
	err := i.command.Process.Signal(sent)
	if err == nil {
		return
	}
	content, _ := os.ReadFile(i.log)
	content = content[min(i.began, int64(len(content))):]
	if !errors.Is(err, os.ErrProcessDone) || !strings.Contains(string(content), "operator: create the manager: ") {
		t.Fatalf("the operator exited unexpectedly: %v: %s", err, content[max(0, len(content)-8000):])
	}
	if err := <-i.exited; err == nil {
		t.Error("the operator exited without an error although the API server is gone")
	}
	// The log of the previous process is kept, because it is checked at the end.
	log, err := os.OpenFile(i.log, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer log.Close()
	i.began, err = log.Seek(0, io.SeekEnd)
	must(t, err)
	ended := i.command
	i.command = exec.Command(ended.Path, ended.Args[1:]...)
	i.command.Stdout, i.command.Stderr, i.command.SysProcAttr = log, log, ended.SysProcAttr
	i.start(t)
	if sent == syscall.SIGTERM || sent == syscall.SIGKILL {
		must(t, i.command.Process.Signal(sent))
	}
}

func (i *instance) kill(t *testing.T) {
	t.Helper()
	i.signal(t, syscall.SIGKILL)
	i.await(t, "killed", true)
}

func (i *instance) await(t *testing.T, what string, expectError bool) {
	t.Helper()
	i.command = nil
	content := func() string { text, _ := os.ReadFile(i.log); return string(text) }
	select {
	case err := <-i.exited:
		if (err != nil) != expectError {
			t.Errorf("the operator was %s and exited with %v:\n%s", what, err, content())
		}
	case <-time.After(waitTimeout):
		t.Fatalf("the operator was %s and did not exit:\n%s", what, content())
	}
	for line := range strings.Lines(content()) {
		if strings.Contains(line, "forbidden") || strings.Contains(line, "panic") {
			t.Errorf("the operator logged: %s", line)
		}
	}
	if _, race, raced := strings.Cut(content(), "WARNING: DATA RACE"); raced {
		t.Errorf("the operator has a data race:%s", race[:min(len(race), 4000)])
	}
}

func (i *instance) processorTime(t *testing.T) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", i.command.Process.Pid))
	must(t, err)
	// After the name, which may contain blanks: utime and stime are fields 14 and 15 (proc_pid_stat(5)).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	ticks := 0
	for _, field := range fields[11:13] {
		value, err := strconv.Atoi(field)
		must(t, err)
		ticks += value
	}
	// USER_HZ is 100 on all platforms of Go.
	return time.Duration(ticks) * 10 * time.Millisecond
}

func must(t testing.TB, err error) {
	t.Helper()
	controlplane.Must(t, err)
}

func eventually(t *testing.T, condition func(context.Context) error) {
	t.Helper()
	controlplane.Eventually(t, waitTimeout, condition)
}

type option func(*corev1.Service)

func class(name string) option {
	return func(service *corev1.Service) { service.Spec.LoadBalancerClass = &name }
}

func families(policy corev1.IPFamilyPolicy, families ...corev1.IPFamily) option {
	return func(service *corev1.Service) {
		service.Spec.IPFamilyPolicy, service.Spec.IPFamilies = &policy, families
	}
}

func annotated(key, value string) option {
	return func(service *corev1.Service) { service.Annotations = map[string]string{key: value} }
}

func (e *environment) service(t *testing.T, name string, options ...option) *corev1.Service {
	t.Helper()
	service := e.unmade(namespace, name)
	for _, option := range options {
		option(service)
	}
	must(t, e.client.Create(t.Context(), service))
	return service
}

func (e *environment) unmade(namespace, name string) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	class(millracev1beta1.Class)(service)
	return service
}

func (e *environment) pool(t *testing.T, name string, change func(*millracev1beta1.VIPPoolSpec), addresses ...string) *millracev1beta1.VIPPool {
	t.Helper()
	pool := &millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       millracev1beta1.VIPPoolSpec{Addresses: addresses},
	}
	if change != nil {
		change(&pool.Spec)
	}
	must(t, e.client.Create(t.Context(), pool))
	return pool
}

func update[T client.Object](t *testing.T, e *environment, object T, change func(T)) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change(object)
		return e.client.Update(ctx, object)
	})
}

func (e *environment) get(ctx context.Context, object client.Object) error {
	return e.client.Get(ctx, client.ObjectKeyFromObject(object), object)
}

func (e *environment) addresses(t *testing.T, service *corev1.Service, want ...string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, service); err != nil {
			return err
		}
		if got := ingress(service); strings.Join(got, " ") != strings.Join(want, " ") {
			return fmt.Errorf("addresses of Service %s = %v, want %v; conditions %+v", service.Name, got, want, service.Status.Conditions)
		}
		return nil
	})
}

func ingress(service *corev1.Service) []string {
	var got []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		got = append(got, ingress.IP)
	}
	return got
}

// condition waits until a Service has the condition and, for problems, an event.
func (e *environment) condition(t *testing.T, service *corev1.Service, status metav1.ConditionStatus, reason, message string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, service); err != nil {
			return err
		}
		got := meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionAddressAssigned)
		if got == nil || got.Status != status || got.Reason != reason || !strings.Contains(got.Message, message) {
			return fmt.Errorf("condition of Service %s = %+v, want %s %s %q", service.Name, got, status, reason, message)
		}
		if status == metav1.ConditionTrue {
			return nil
		}
		return e.event(ctx, service, reason, message)
	})
}

func (e *environment) event(ctx context.Context, service *corev1.Service, reason, note string) error {
	return e.eventOf(ctx, service, "", reason, note)
}

func (e *environment) warning(ctx context.Context, service *corev1.Service, reason, note string) error {
	return e.eventOf(ctx, service, corev1.EventTypeWarning, reason, note)
}

func (e *environment) eventOf(ctx context.Context, service *corev1.Service, severity, reason, note string) error {
	list := &eventsv1.EventList{}
	if err := e.client.List(ctx, list, client.InNamespace(service.Namespace)); err != nil {
		return err
	}
	for _, event := range list.Items {
		severe := severity == "" || event.Type == severity
		if event.Regarding.UID == service.UID && severe && event.Reason == reason && strings.Contains(event.Note, note) {
			return nil
		}
	}
	return fmt.Errorf("Service %s: no event %s %q among %d", service.Name, reason, note, len(list.Items))
}

func vipOf(address string) *millracev1beta1.VIP {
	name := millracev1beta1.VIPName(netip.MustParseAddr(address))
	return &millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: millracev1beta1.VIPSpec{Address: address}}
}

// bound waits until an address has a VIP with a claim of a Service.
func (e *environment) bound(t *testing.T, address string, service *corev1.Service) *millracev1beta1.VIP {
	t.Helper()
	vip := vipOf(address)
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, vip); err != nil {
			return err
		}
		claims := vip.Spec.Claims
		if len(claims) != 1 || claims[0].UID != string(service.UID) {
			return fmt.Errorf("claims of VIP %s = %+v", vip.Name, claims)
		}
		return nil
	})
	return vip
}

func (e *environment) gone(t *testing.T, object client.Object) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		err := e.get(ctx, object)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%T %s was not deleted: %w", object, object.GetName(), err)
	})
}

func (e *environment) ready(t *testing.T, object client.Object, conditions *[]metav1.Condition, reason, message string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, object); err != nil {
			return err
		}
		got := meta.FindStatusCondition(*conditions, millracev1beta1.ConditionReady)
		if got == nil || got.Reason != reason || !strings.Contains(got.Message, message) {
			return fmt.Errorf("condition of %T %s = %+v, want %s %q", object, object.GetName(), got, reason, message)
		}
		return nil
	})
}
