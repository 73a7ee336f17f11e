// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"slices"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const maxOverCapacity = 32

func overCapacity(problems []model.Problem) []millracev1beta1.ServiceReference {
	var services []millracev1beta1.ServiceReference
	for _, problem := range problems {
		if problem.Reason == millracev1beta1.ReasonMapFull && problem.Object.Kind == "Service" {
			services = append(services, millracev1beta1.ServiceReference{Namespace: problem.Object.Namespace, Name: problem.Object.Name})
		}
	}
	slices.SortFunc(services, func(a, b millracev1beta1.ServiceReference) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	services = slices.Compact(services)
	return services[:min(len(services), maxOverCapacity)]
}
