// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/features"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func classStatus(t *testing.T, version string) gatewayv1.GatewayClassStatus {
	t.Helper()
	class := &gatewayv1.GatewayClass{
		ObjectMeta: metav1.ObjectMeta{Name: "millrace", Generation: 7},
		Spec:       gatewayv1.GatewayClassSpec{ControllerName: model.GatewayController},
	}
	objects := &model.Objects{GatewayClasses: []*gatewayv1.GatewayClass{class}, GatewayAPIVersion: version}
	found := route.Compile(objects, model.DefaultSettings()).Statuses.GatewayClasses
	if len(found) != 1 {
		t.Fatalf("%d statuses, want one", len(found))
	}
	return found[0].Status
}

func TestFeaturesOfClasses(t *testing.T) {
	found := classStatus(t, "").SupportedFeatures
	names := make([]string, 0, len(found))
	for _, feature := range found {
		if features.GetFeature(features.FeatureName(feature.Name)).Name == "" {
			t.Errorf("%s is not a feature of Gateway API", feature.Name)
		}
		names = append(names, string(feature.Name))
	}
	// The API server accepts at most 64 sorted features (GatewayClassStatus.supportedFeatures).
	if len(names) == 0 || len(names) > 64 || !slices.IsSorted(names) || len(slices.Compact(names)) != len(found) {
		t.Errorf("%d features: %q", len(names), names)
	}
}

func TestVersionOfClasses(t *testing.T) {
	for version, want := range map[string]metav1.ConditionStatus{
		"v1.6.3": metav1.ConditionTrue, "v1.6.0": metav1.ConditionTrue, "v1.6.9-rc.1": metav1.ConditionTrue,
		"v1.5.1": metav1.ConditionFalse, "v1.7.0": metav1.ConditionFalse, "v2.6.0": metav1.ConditionFalse,
		"": metav1.ConditionFalse, "main": metav1.ConditionFalse,
	} {
		for _, condition := range classStatus(t, version).Conditions {
			if condition.ObservedGeneration != 7 {
				t.Errorf("%s observed generation %d", condition.Type, condition.ObservedGeneration)
			}
		}
		condition := meta.FindStatusCondition(classStatus(t, version).Conditions, "SupportedVersion")
		if condition == nil || condition.Status != want || (want == metav1.ConditionFalse) != (condition.Message != "") {
			t.Errorf("version %q: %+v, want %s", version, condition, want)
		}
	}
}
