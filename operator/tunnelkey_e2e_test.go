// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func tunnelSecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: tunnelkey.Namespace, Name: tunnelkey.SecretName}}
}

func (e *environment) tunnelState(ctx context.Context) (*tunnelkey.State, error) {
	secret := tunnelSecret()
	if err := e.get(ctx, secret); err != nil {
		return nil, err
	}
	return tunnelkey.Parse(secret.Data)
}

type keyedNode struct {
	name   string
	does   tunnelkey.Ring
	silent bool
}

func (e *environment) follow(ctx context.Context, nodes []*keyedNode) error {
	state, err := e.tunnelState(ctx)
	if err != nil {
		return err
	}
	for i, node := range nodes {
		if node.silent {
			continue
		}
		node.does = tunnelkey.Adopt(node.does, state)
		report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: node.name}}
		if err := e.get(ctx, report); err != nil {
			return err
		}
		base := report.DeepCopy()
		report.Status.TunnelKeys = &millracev1beta1.TunnelKeysStatus{Sending: int64(node.does.Sending), Required: node.does.Required}
		for _, generation := range node.does.Accepted {
			report.Status.TunnelKeys.Accepted = append(report.Status.TunnelKeys.Accepted, int64(generation))
		}
		if err := e.client.Status().Patch(ctx, report, client.MergeFrom(base)); err != nil {
			return err
		}
		for j, to := range nodes {
			if !to.silent && !to.does.Takes(node.does.Sending) {
				return fmt.Errorf("node %d sends with %+v, but node %d accepts %+v", i, node.does, j, to.does)
			}
		}
	}
	return nil
}

func (e *environment) reaches(t *testing.T, nodes []*keyedNode, phase tunnelkey.Phase, sending uint32, required bool) *tunnelkey.State {
	t.Helper()
	var state *tunnelkey.State
	eventually(t, func(ctx context.Context) error {
		err := e.follow(ctx, nodes)
		if err != nil {
			return err
		}
		if state, err = e.tunnelState(ctx); err != nil {
			return err
		}
		if state.Phase != phase || state.Sending != sending || state.Required != required {
			return fmt.Errorf("Secret = %+v", state)
		}
		return nil
	})
	return state
}

func (e *environment) keyed(t *testing.T, names ...string) []*keyedNode {
	t.Helper()
	var keyed []*keyedNode
	for i, name := range names {
		lbNode := e.lbNode(t, e.node(t, name, fmt.Sprintf("198.51.100.%d", i+1)), fmt.Sprintf("198.51.100.%d", i+1))
		lbNode.Status.BootID = "boot"
		must(t, e.client.Status().Update(t.Context(), lbNode))
		report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: name}}
		eventually(t, func(ctx context.Context) error { return e.get(ctx, report) })
		keyed = append(keyed, &keyedNode{name: name})
	}
	return keyed
}

func tunnelKeys(t *testing.T, e *environment) {
	first := e.run(t, "--tunnel-key-lifetime=0")
	nodes := e.keyed(t, "node0", "node1", "node2")
	state := e.reaches(t, nodes, tunnelkey.Publishing, 0, false)
	if state.Newest().Generation != 1 {
		t.Errorf("first key = %s", state.Newest())
	}
	e.reaches(t, nodes, tunnelkey.Switching, 1, false)
	e.reaches(t, nodes, tunnelkey.Steady, 1, true)

	update(t, e, tunnelSecret(), func(secret *corev1.Secret) {
		secret.Annotations = map[string]string{tunnelkey.AnnotationRotate: "now"}
	})
	both := e.reaches(t, nodes, tunnelkey.Publishing, 1, true)
	if one, ok := both.Key(1); !ok || one != state.Accepted[0] || both.Newest().Generation != 2 {
		t.Errorf("keys = %v", both.Accepted)
	}
	first.kill(t)
	second := e.run(t, "--tunnel-key-lifetime=0")
	e.reaches(t, nodes, tunnelkey.Switching, 2, true)
	state = e.reaches(t, nodes, tunnelkey.Steady, 2, true)
	if len(state.Accepted) != 1 {
		t.Errorf("keys = %v", state.Accepted)
	}
	secret := tunnelSecret()
	must(t, e.get(t.Context(), secret))
	if len(secret.Annotations) > 0 {
		t.Errorf("annotations = %v", secret.Annotations)
	}

	// After a deletion the key is rotated by the same steps, while nodes keep the previous one.
	must(t, e.client.Delete(t.Context(), secret))
	state = e.reaches(t, nodes, tunnelkey.Publishing, 0, true)
	if state.Newest().Generation != 3 || nodes[0].does.Sending != 2 {
		t.Errorf("after the deletion: keys %v, node0 %+v", state.Accepted, nodes[0].does)
	}
	e.reaches(t, nodes, tunnelkey.Steady, 3, true)

	e.garbledKey(t)
	second.stop(t)
	e.keysOfLog(t, second)

	e.run(t, "--tunnel-key-lifetime=1s")
	e.reaches(t, nodes, tunnelkey.Publishing, 3, true)
}

// flowSeed checks that rotations, a new operator and the loss of the Secret preserve the seed, or its
// absence.
func flowSeed(t *testing.T, e *environment) {
	none := flowhash.Seed{}
	// No agent has run there yet.
	e.node(t, "fresh", "198.51.100.9")
	first := e.run(t, "--tunnel-key-lifetime=0")
	seed := none
	eventually(t, func(ctx context.Context) error {
		state, err := e.tunnelState(ctx)
		if err != nil {
			return err
		}
		seed = state.Seed
		return nil
	})
	if seed == none {
		t.Fatal("the new installation has no seed")
	}
	has := func(state *tunnelkey.State, want flowhash.Seed, when string) {
		t.Helper()
		if state.Seed != want {
			t.Errorf("%s: seed %v, want %v", when, state.Seed, want)
		}
	}
	nodes := e.keyed(t, "node0")
	has(e.reaches(t, nodes, tunnelkey.Switching, 1, false), seed, "after a step")
	must(t, e.client.Delete(t.Context(), tunnelSecret()))
	has(e.reaches(t, nodes, tunnelkey.Publishing, 0, false), seed, "after a deletion")
	first.kill(t)
	second := e.run(t, "--tunnel-key-lifetime=0")
	state := e.reaches(t, nodes, tunnelkey.Switching, 2, false)
	has(state, seed, "with another operator")

	state.Seed = none
	update(t, e, tunnelSecret(), func(secret *corev1.Secret) { secret.Data = state.Data() })
	has(e.reaches(t, nodes, tunnelkey.Steady, 2, true), none, "where there is none")
	second.stop(t)
	must(t, e.client.Delete(t.Context(), tunnelSecret()))
	e.run(t, "--tunnel-key-lifetime=0")
	has(e.reaches(t, nodes, tunnelkey.Steady, 3, true), none, "where agents have run without")
}

func (e *environment) garbledKey(t *testing.T) {
	t.Helper()
	good := tunnelSecret()
	must(t, e.get(t.Context(), good))
	update(t, e, tunnelSecret(), func(secret *corev1.Secret) { secret.Data = map[string][]byte{"phase": []byte("nonsense")} })
	eventually(t, func(ctx context.Context) error {
		garbled := tunnelSecret()
		if err := e.get(ctx, garbled); err != nil {
			return err
		}
		if string(garbled.Data["phase"]) != "nonsense" {
			t.Fatalf("the invalid Secret was overwritten: %v", garbled.Data)
		}
		return e.secretEvent(ctx, garbled, millracev1beta1.ReasonKeyInvalid, "there are 0 keys, must be 1 or 2")
	})
	update(t, e, tunnelSecret(), func(secret *corev1.Secret) { secret.Data = good.Data })
}

func (e *environment) secretEvent(ctx context.Context, secret *corev1.Secret, reason, note string) error {
	return e.eventOf(ctx, &corev1.Service{ObjectMeta: secret.ObjectMeta}, "", reason, note)
}

func (e *environment) keysOfLog(t *testing.T, operator *instance) {
	t.Helper()
	state, err := e.tunnelState(t.Context())
	must(t, err)
	newest := state.Newest()
	log, err := os.ReadFile(operator.log)
	must(t, err)
	for _, form := range []string{"%s", "%x", "%d"} {
		if text := fmt.Sprintf(form, newest.Secret[:]); strings.Contains(string(log), text) {
			t.Errorf("the log contains the key, formatted as %s", form)
		}
	}
	if !strings.Contains(string(log), "The rotation of the tunnel's key advanced") {
		t.Errorf("the log contains no rotation steps:\n%s", log)
	}
}

// tunnelKeysLate verifies that a node without a confirmation delays a rotation until the timeout.
func tunnelKeysLate(t *testing.T, e *environment) {
	e.run(t, "--tunnel-key-node-timeout=1h")
	nodes := e.keyed(t, "node0", "late")
	e.reaches(t, nodes, tunnelkey.Steady, 1, true)
	nodes[1].silent = true
	update(t, e, tunnelSecret(), func(secret *corev1.Secret) {
		secret.Annotations = map[string]string{tunnelkey.AnnotationRotate: ""}
	})
	state := e.reaches(t, nodes, tunnelkey.Publishing, 1, true)
	must(t, e.follow(t.Context(), nodes))

	e.since(t, state, 10*time.Minute)
	e.keyCurrent(t, "late", "the other nodes wait until")
	e.keyCurrent(t, "node0", "")
	if state, err := e.tunnelState(t.Context()); err != nil || state.Phase != tunnelkey.Publishing {
		t.Errorf("Secret = %+v, %v", state, err)
	}
	e.since(t, state, 2*time.Hour)
	state = e.reaches(t, nodes, tunnelkey.Switching, 2, true)
	e.since(t, state, 2*time.Hour)
	eventually(t, func(ctx context.Context) error {
		state, err := e.tunnelState(ctx)
		if err == nil && state.Phase != tunnelkey.Steady {
			err = fmt.Errorf("Secret = %+v", state)
		}
		return err
	})
	eventually(t, func(ctx context.Context) error {
		return e.secretEvent(ctx, tunnelSecretOf(ctx, e), millracev1beta1.ReasonKeyNotConfirmed, "phase Steady began without late")
	})
	e.keyCurrent(t, "late", "the other nodes drop its packets until then")
	nodes[1].silent = false
	must(t, e.follow(t.Context(), nodes[1:]))
	e.keyCurrent(t, "late", "")
}

func tunnelSecretOf(ctx context.Context, e *environment) *corev1.Secret {
	secret := tunnelSecret()
	_ = e.get(ctx, secret)
	return secret
}

func (e *environment) since(t *testing.T, state *tunnelkey.State, age time.Duration) {
	t.Helper()
	state.Since = time.Now().Add(-age)
	update(t, e, tunnelSecret(), func(secret *corev1.Secret) { secret.Data = state.Data() })
}

func (e *environment) keyCurrent(t *testing.T, node, text string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: node}}
		if err := e.get(ctx, report); err != nil {
			return err
		}
		i := slices.IndexFunc(report.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == millracev1beta1.ConditionTunnelKeyCurrent
		})
		if (i >= 0) != (text != "") || i >= 0 && !strings.Contains(report.Status.Conditions[i].Message, text) {
			return fmt.Errorf("conditions of %s = %+v, want %q", node, report.Status.Conditions, text)
		}
		return nil
	})
}

// tunnelKeyRights verifies that the operator can read and write only one Secret of its namespace.
func tunnelKeyRights(t *testing.T, e *environment) {
	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "other"}}
	must(t, e.client.Create(t.Context(), other))
	t.Cleanup(func() { must(t, e.client.Delete(context.Background(), other)) })
	config := rest.CopyConfig(e.server.User(operatorUser))
	operator, err := client.New(config, client.Options{Scheme: e.client.Scheme()})
	must(t, err)
	ctx := t.Context()
	for what, err := range map[string]error{
		"get another Secret":    operator.Get(ctx, client.ObjectKeyFromObject(other), other.DeepCopy()),
		"update another Secret": operator.Update(ctx, other.DeepCopy()),
		"delete another Secret": operator.Delete(ctx, other.DeepCopy()),
		"list Secrets":          operator.List(ctx, &corev1.SecretList{}, client.InNamespace(systemNamespace)),
		"delete its own Secret": operator.Delete(ctx, tunnelSecret()),
		"create a Secret in another namespace": operator.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: tunnelkey.SecretName},
		}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want Forbidden", what, errors.Join(err))
		}
	}
}
