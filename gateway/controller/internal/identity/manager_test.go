// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

type answers struct {
	client.Reader
	err error
}

func (a *answers) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return a.err
}

// TestAPIServerLoss checks that any response, whatever its status, within LossAfter means that the API server is
// there.
func TestAPIServerLoss(t *testing.T) {
	api, lost := &answers{}, false
	const lossAfter = 30 * time.Second
	k := &Manager{LossAfter: lossAfter, Reader: api, IsLeader: func() bool { return false }, OnLoss: func(is bool) { lost = is }, Log: logr.Discard()}
	for _, test := range []struct {
		name  string
		err   error
		after time.Duration
		want  bool
	}{
		{"missing Secret", apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "s"), 0, false},
		{"a read fails", errors.New("cut off"), lossAfter, false},
		{"reads fail", errors.New("cut off"), lossAfter + 5*time.Second, true},
		{"response after errors", apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "s"), 0, false},
	} {
		api.err = test.err
		_ = k.step(t.Context(), time.Now())
		k.updateLost(k.lastResponse.Add(test.after))
		if lost != test.want || k.IsLost() != test.want {
			t.Errorf("%s: lost = %v, IsLost = %v; want %v", test.name, lost, k.IsLost(), test.want)
		}
	}
}
