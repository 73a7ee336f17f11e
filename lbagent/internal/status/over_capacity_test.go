// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func TestOverCapacity(t *testing.T) {
	full := func(kind, name string) model.Problem {
		return model.Problem{
			Object: model.ObjectReference{Kind: kind, Namespace: "shop", Name: name}, Reason: millracev1beta1.ReasonMapFull,
		}
	}
	other := full("Service", "a-wrong-one")
	other.Reason = millracev1beta1.ReasonInvalid
	o := Observation{Problems: []model.Problem{full("Service", "web"), full("VIP", "a-vip"), other, full("Service", "dns"), full("Service", "web")}}
	report := &millracev1beta1.LBNodeReport{}
	got := Build(o, report, metav1.Now()).ServicesOverCapacity
	if len(got) != 2 || got[0].Name != "dns" || got[1].Name != "web" || got[0].Namespace != "shop" {
		t.Errorf("ServicesOverCapacity = %+v", got)
	}
	o.Problems = nil
	for i := range 100 {
		o.Problems = append(o.Problems, full("Service", fmt.Sprintf("s%02d", 99-i)))
	}
	if got := Build(o, report, metav1.Now()).ServicesOverCapacity; len(got) != maxOverCapacity || got[0].Name != "s00" || got[maxOverCapacity-1].Name != "s31" {
		t.Errorf("ServicesOverCapacity = %+v", got)
	}
}
