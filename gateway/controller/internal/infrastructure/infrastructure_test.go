// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	wire "github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func settings() infrastructure.Settings {
	return infrastructure.Settings{
		Namespace: "millrace-system", Image: "example.com/lbproxy:v1", Controller: "198.51.100.1:15443",
		ServerName: "millrace-gateway.millrace-system.svc", CAs: "PEM",
		CPU: resource.MustParse("100m"), Memory: resource.MustParse("128Mi"), MemoryLimit: resource.MustParse("1Gi"),
	}
}

func web() []model.Port {
	return []model.Port{
		{Name: "tcp-80", VIP: 80, Target: 8080, Protocol: corev1.ProtocolTCP},
		{Name: "tcp-443", VIP: 443, Target: 8443, Protocol: corev1.ProtocolTCP},
	}
}

func listens() []*wire.Resource {
	return []*wire.Resource{{Name: "listener/web", Kind: &wire.Resource_Listener{Listener: &wire.Listener{}}}}
}

var (
	class   = infrastructure.Owner{Object: model.Object{Kind: "IngressClass", Name: "millrace"}}
	ingress = infrastructure.Owner{Object: model.Object{Kind: "Ingress", Namespace: "shop", Name: "web"}, UID: "u1"}
	gateway = infrastructure.Owner{Object: model.Object{Kind: "Gateway", Namespace: "shop", Name: "web"}, UID: "u2", Class: "millrace"}
)

func find[T infrastructure.Object](t *testing.T, objects []infrastructure.Object) T {
	t.Helper()
	for _, object := range objects {
		if typed, ok := object.(T); ok {
			return typed
		}
	}
	var none T
	t.Fatalf("no %T among %d objects", none, len(objects))
	return none
}

func has[T infrastructure.Object](objects []infrastructure.Object) bool {
	return slices.ContainsFunc(objects, func(object infrastructure.Object) bool { _, ok := object.(T); return ok })
}

func TestPlaceAndOwnership(t *testing.T) {
	for _, test := range []struct {
		owner           infrastructure.Owner
		namespace, name string
		reference       string
	}{
		{class, "millrace-system", "ingressclass-millrace", ""},
		{ingress, "shop", "ingress-web", "networking.k8s.io/v1 Ingress web u1"},
		{gateway, "shop", "web-millrace", "gateway.networking.k8s.io/v1 Gateway web u2"},
	} {
		objects := infrastructure.Objects(&model.Proxy{Owner: test.owner.Object, Ports: web(), Resources: listens()}, nil, test.owner, settings())
		if len(objects) != 5 {
			t.Errorf("%s: %d objects, want 5", test.owner.Kind, len(objects))
		}
		for _, object := range objects {
			if object.GetNamespace() != test.namespace || object.GetName() != test.name {
				t.Errorf("%s: %T is %s/%s, want %s/%s", test.owner.Kind, object, object.GetNamespace(), object.GetName(), test.namespace, test.name)
			}
			reference := ""
			for _, r := range object.GetOwnerReferences() {
				reference = strings.Join([]string{r.APIVersion, r.Kind, r.Name, string(r.UID)}, " ")
			}
			if reference != test.reference {
				t.Errorf("%s: %T is owned by %q, want %q", test.owner.Kind, object, reference, test.reference)
			}
		}
	}
}

func TestNamesAreThoseOfServices(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{
		"web", "web.example.com", "web-example.com", "1st", strings.Repeat("a", 253), strings.Repeat("a", 252) + "b", strings.Repeat("a.", 60) + "b",
	} {
		for _, kind := range []string{"IngressClass", "Ingress", "Gateway"} {
			owner := infrastructure.Owner{Object: model.Object{Kind: kind, Namespace: "shop", Name: name}, Class: strings.Repeat("class.", 9) + "x"}
			place := owner.ObjectKey(settings()).Name
			if problems := validation.IsDNS1035Label(place); len(problems) > 0 {
				t.Errorf("%s %s is %q: %v", kind, name, place, problems)
			}
			if other, taken := seen[place]; taken {
				t.Errorf("%s %s = %q, already used by %s", kind, name, place, other)
			}
			seen[place] = kind + " " + name
			objects := infrastructure.Objects(&model.Proxy{Ports: web()}, nil, owner, settings())
			for key, value := range objects[0].GetLabels() {
				if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
					t.Errorf("%s %s: label %s: %v", kind, name, key, problems)
				}
			}
		}
	}
}

// TestCertificateProblems reports only certificates that the owner's proxies serve.
func TestCertificateProblems(t *testing.T) {
	proxy := &model.Proxy{Ports: web(), Resources: []*wire.Resource{
		{Name: model.CertificateName("shop", "old"), Kind: &wire.Resource_Certificate{Certificate: &wire.Certificate{}}},
		{Name: model.CertificateName("shop", "good"), Kind: &wire.Resource_Certificate{Certificate: &wire.Certificate{}}},
	}}
	with := settings()
	with.Certificates = []model.Certificate{
		{Namespace: "blog", Name: "old", Problem: "expired"}, {Namespace: "shop", Name: "good"}, {Namespace: "shop", Name: "old", Problem: "expired"},
	}
	service := find[*corev1.Service](t, infrastructure.Objects(proxy, nil, gateway, with))
	if got := service.Annotations[model.AnnotationCertificateProblems]; got != "shop/old: expired" {
		t.Errorf("certificate problems = %q", got)
	}
	for i := range 100 {
		name := fmt.Sprint("bad-", i)
		proxy.Resources = append(proxy.Resources, &wire.Resource{Name: model.CertificateName("shop", name), Kind: &wire.Resource_Certificate{Certificate: &wire.Certificate{}}})
		with.Certificates = append(with.Certificates, model.Certificate{Namespace: "shop", Name: name, Problem: strings.Repeat("\xff\n", 10000)})
	}
	service = find[*corev1.Service](t, infrastructure.Objects(proxy, nil, gateway, with))
	got := service.Annotations[model.AnnotationCertificateProblems]
	if lines := strings.Count(got, "\n") + 1; lines != 5 || len(got) > 4000 || !utf8.ValidString(got) {
		t.Errorf("%d lines, %d bytes, valid UTF-8: %v", lines, len(got), utf8.ValidString(got))
	}
}

func TestService(t *testing.T) {
	proxy := &model.Proxy{
		Ports: web(), Labels: map[string]string{"team": "shop", "app.kubernetes.io/name": "other"},
		Annotations: map[string]string{"note": "x"},
		Parameters:  model.Parameters{Pool: "public", Addresses: "203.0.113.9"},
	}
	service := find[*corev1.Service](t, infrastructure.Objects(proxy, nil, gateway, settings()))
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer || *service.Spec.LoadBalancerClass != millracev1beta1.Class {
		t.Errorf("type %s, class %s", service.Spec.Type, *service.Spec.LoadBalancerClass)
	}
	other := settings()
	other.LoadBalancerClass = "example.com/lb"
	if class := *find[*corev1.Service](t, infrastructure.Objects(proxy, nil, gateway, other)).Spec.LoadBalancerClass; class != "example.com/lb" {
		t.Errorf("class with a different setting = %s", class)
	}
	if len(service.Spec.Ports) != 2 || service.Spec.Ports[1].Port != 443 || service.Spec.Ports[1].TargetPort.IntVal != 8443 {
		t.Errorf("ports = %+v", service.Spec.Ports)
	}
	for key, want := range map[string]string{
		"team": "shop", "app.kubernetes.io/name": "millrace",
		infrastructure.LabelGateway: "web", infrastructure.LabelGatewayClass: "millrace",
	} {
		if got := service.Labels[key]; got != want {
			t.Errorf("label %s = %q, want %q", key, got, want)
		}
	}
	for key, want := range map[string]string{
		"note": "x", millracev1beta1.AnnotationPool: "public", millracev1beta1.AnnotationAddresses: "203.0.113.9",
		infrastructure.AnnotationOwner: "Gateway/shop/web",
	} {
		if got := service.Annotations[key]; got != want {
			t.Errorf("annotation %s = %q, want %q", key, got, want)
		}
	}

	named := gatewayv1.NamedAddressType
	proxy.Addresses = []gatewayv1.GatewaySpecAddress{{Value: "203.0.113.7"}, {Type: &named, Value: "name"}, {Value: "2001:db8::7"}}
	service = find[*corev1.Service](t, infrastructure.Objects(proxy, nil, gateway, settings()))
	if got := service.Annotations[millracev1beta1.AnnotationAddresses]; got != "203.0.113.7,2001:db8::7" {
		t.Errorf("addresses = %q, want those of the Gateway", got)
	}
}

func TestDeploymentIsUnprivileged(t *testing.T) {
	objects := infrastructure.Objects(&model.Proxy{Ports: web(), Resources: listens()}, nil, class, settings())
	deployment := find[*appsv1.Deployment](t, objects)
	pod := deployment.Spec.Template.Spec
	container := pod.Containers[0]
	context := container.SecurityContext
	switch {
	case *pod.AutomountServiceAccountToken, *find[*corev1.ServiceAccount](t, objects).AutomountServiceAccountToken:
		t.Error("a service account token is mounted")
	case !*pod.SecurityContext.RunAsNonRoot, pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault:
		t.Errorf("the pod is not restricted: %+v", pod.SecurityContext)
	case *context.AllowPrivilegeEscalation, !*context.ReadOnlyRootFilesystem, context.Privileged != nil,
		!slices.Equal(context.Capabilities.Drop, []corev1.Capability{"ALL"}), len(context.Capabilities.Add) > 0:
		t.Errorf("the container is not restricted: %+v", context)
	case pod.HostNetwork, pod.HostPID, pod.HostIPC:
		t.Error("the pod uses a namespace of its host")
	}
	for _, volume := range pod.Volumes {
		switch {
		case volume.EmptyDir != nil && volume.EmptyDir.Medium != corev1.StorageMediumMemory:
			t.Errorf("volume %s is not in memory", volume.Name)
		case volume.Projected != nil && volume.Projected.Sources[0].ServiceAccountToken.Audience != infrastructure.Audience:
			t.Errorf("volume %s has tokens for %+v", volume.Name, volume.Projected.Sources)
		case volume.HostPath != nil, volume.Secret != nil:
			t.Errorf("volume %s is a host path or a Secret", volume.Name)
		}
	}
	if *pod.TerminationGracePeriodSeconds < 30 || container.ReadinessProbe == nil || *deployment.Spec.Replicas != 2 {
		t.Errorf("grace period %d, readiness probe %v, replicas %d", *pod.TerminationGracePeriodSeconds, container.ReadinessProbe, *deployment.Spec.Replicas)
	}
	budget := find[*policyv1.PodDisruptionBudget](t, objects)
	for key, value := range budget.Spec.Selector.MatchLabels {
		if deployment.Spec.Template.Labels[key] != value {
			t.Errorf("the PodDisruptionBudget selects %s=%s, pods have %v", key, value, deployment.Spec.Template.Labels)
		}
	}
}

// TestPodsOutliveChanges checks that changed ports and CAs do not change the pods.
func TestPodsOutliveChanges(t *testing.T) {
	before := find[*appsv1.Deployment](t, infrastructure.Objects(&model.Proxy{Ports: web()[:1], Resources: listens()}, nil, class, settings()))
	changed := settings()
	changed.CAs = "OTHER"
	after := find[*appsv1.Deployment](t, infrastructure.Objects(&model.Proxy{Ports: web(), Resources: listens()}, nil, class, changed))
	if before.Spec.Template.String() != after.Spec.Template.String() {
		t.Errorf("the pod template changed:\n%s\n%s", before.Spec.Template.String(), after.Spec.Template.String())
	}
}

func TestScaling(t *testing.T) {
	fixed := infrastructure.Objects(
		&model.Proxy{Ports: web(), Resources: listens(), Parameters: model.Parameters{Replicas: 3, MaxReplicas: 3}}, nil, class, settings())
	if has[*autoscalingv2.HorizontalPodAutoscaler](fixed) || *find[*appsv1.Deployment](t, fixed).Spec.Replicas != 3 {
		t.Error("a fixed number of three replicas is autoscaled")
	}
	scaled := infrastructure.Objects(
		&model.Proxy{Ports: web(), Resources: listens(), Parameters: model.Parameters{Replicas: 3, MaxReplicas: 9}}, nil, class, settings())
	autoscaler := find[*autoscalingv2.HorizontalPodAutoscaler](t, scaled)
	if *autoscaler.Spec.MinReplicas != 3 || autoscaler.Spec.MaxReplicas != 9 {
		t.Errorf("autoscaling from %d to %d replicas, want from 3 to 9", *autoscaler.Spec.MinReplicas, autoscaler.Spec.MaxReplicas)
	}
	if replicas := find[*appsv1.Deployment](t, scaled).Spec.Replicas; replicas != nil {
		t.Errorf("the autoscaled Deployment has %d replicas", *replicas)
	}
}

func TestNoPortsNoObjects(t *testing.T) {
	if objects := infrastructure.Objects(&model.Proxy{}, nil, gateway, settings()); len(objects) != 0 {
		t.Errorf("%d objects for a Gateway without listeners", len(objects))
	}
}

// TestServiceRemainsWithoutListeners checks that a Gateway with a broken certificate keeps its VIP.
func TestServiceRemainsWithoutListeners(t *testing.T) {
	objects := infrastructure.Objects(&model.Proxy{Ports: web()}, nil, gateway, settings())
	if len(objects) != 1 || len(find[*corev1.Service](t, objects).Spec.Ports) != 2 {
		t.Errorf("%d objects, want the Service with both ports", len(objects))
	}
}

func frontends() []*model.Frontend {
	at := func(name string, port int32) model.ServicePort {
		return model.ServicePort{Namespace: "data", Name: name, Port: port}
	}
	return []*model.Frontend{
		{Gateway: gateway.Object, Port: 5432, Protocol: corev1.ProtocolTCP, Services: []model.WeightedService{
			{ServicePort: at("one", 5432), Weight: 9}, {ServicePort: at("none", 0), Weight: 1, Invalid: true}, {ServicePort: at("two", 5433)},
		}},
		{Gateway: gateway.Object, Port: 443, Protocol: corev1.ProtocolUDP},
	}
}

func TestLayer4NeedsNoProxy(t *testing.T) {
	objects := infrastructure.Objects(&model.Proxy{}, frontends(), gateway, settings())
	service := find[*corev1.Service](t, objects)
	if len(objects) != 3 || has[*appsv1.Deployment](objects) || has[*corev1.ServiceAccount](objects) {
		t.Fatalf("%d objects, want the Service and two VIPRoutes", len(objects))
	}
	if _, last := objects[2].(*corev1.Service); !last {
		t.Error("the Service is created before its VIPRoutes: its ports would select proxies")
	}
	var ports []string
	for _, port := range service.Spec.Ports {
		ports = append(ports, fmt.Sprintf("%s %d/%s to %s", port.Name, port.Port, port.Protocol, port.TargetPort.String()))
	}
	if want := []string{"tcp-5432 5432/TCP to viproute", "udp-443 443/UDP to viproute"}; !slices.Equal(ports, want) {
		t.Errorf("Service ports = %q, want %q", ports, want)
	}
	of := find[*millracev1beta1.VIPRoute](t, objects)
	if of.Name != "web-millrace-tcp-5432" || of.Namespace != "shop" || of.Spec.ServiceName != service.Name || len(of.OwnerReferences) != 1 {
		t.Errorf("VIPRoute = %s/%s for Service %s", of.Namespace, of.Name, of.Spec.ServiceName)
	}
	parsed, problems := desired.ParseRoute(of)
	if len(problems) > 0 || len(parsed) != 1 {
		t.Fatalf("parsed %d ports: %v", len(parsed), problems)
	}
	var backends []string
	for _, backend := range parsed[0].Backends {
		backends = append(backends, fmt.Sprintf("%s:%d*%d %v", backend.Service, backend.Port, backend.Weight, backend.Refused))
	}
	if want := []string{"data/one:5432*9 false", "shop/:0*1 true", "data/two:5433*0 false"}; !slices.Equal(backends, want) {
		t.Errorf("backends = %q, want %q", backends, want)
	}
}

func TestLayer4BesideProxies(t *testing.T) {
	objects := infrastructure.Objects(&model.Proxy{Ports: web(), Resources: listens()}, frontends(), gateway, settings())
	if len(objects) != 7 || len(find[*corev1.Service](t, objects).Spec.Ports) != 4 {
		t.Errorf("%d objects, %d ports", len(objects), len(find[*corev1.Service](t, objects).Spec.Ports))
	}
}

func TestFamilies(t *testing.T) {
	dual, single := corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicySingleStack
	for addresses, want := range map[string]struct {
		policy   corev1.IPFamilyPolicy
		families []corev1.IPFamily
	}{
		"":                        {dual, nil},
		"203.0.113.7":             {single, []corev1.IPFamily{corev1.IPv4Protocol}},
		"203.0.113.7,203.0.113.8": {single, []corev1.IPFamily{corev1.IPv4Protocol}},
		"2001:db8::7":             {single, []corev1.IPFamily{corev1.IPv6Protocol}},
		"203.0.113.7,2001:db8::7": {dual, nil},
		"203.0.113.7,":            {dual, nil},
	} {
		proxy := &model.Proxy{Ports: web()}
		for text := range strings.SplitSeq(addresses, ",") {
			proxy.Addresses = append(proxy.Addresses, gatewayv1.GatewaySpecAddress{Value: text})
		}
		spec := find[*corev1.Service](t, infrastructure.Objects(proxy, nil, gateway, settings())).Spec
		if *spec.IPFamilyPolicy != want.policy || !slices.Equal(spec.IPFamilies, want.families) {
			t.Errorf("%q: %s %v, want %s %v", addresses, *spec.IPFamilyPolicy, spec.IPFamilies, want.policy, want.families)
		}
	}
}

func TestObservabilityArguments(t *testing.T) {
	arguments := func(parameters model.Parameters) string {
		objects := infrastructure.Objects(&model.Proxy{Owner: class.Object, Ports: web(), Resources: listens(), Parameters: parameters}, nil, class, settings())
		return strings.Join(find[*appsv1.Deployment](t, objects).Spec.Template.Spec.Containers[0].Args, " ")
	}
	for _, flag := range []string{"--access-log", "--route-metrics", "--tracing"} {
		if without := arguments(model.Parameters{TracingRatio: "0.5"}); strings.Contains(without, flag) {
			t.Errorf("%s is in %s", flag, without)
		}
	}
	all := arguments(model.Parameters{
		ResponseTimeout: 5 * time.Minute, AccessLog: true, RouteMetrics: true, TracingEndpoint: "http://collector:4317", TracingRatio: "0.5",
	})
	if want := " --response-timeout=5m0s --access-log --route-metrics --tracing-endpoint=http://collector:4317 --tracing-ratio=0.5"; !strings.HasSuffix(all, want) {
		t.Errorf("arguments = %s; want suffix %s", all, want)
	}
}

func TestPlacement(t *testing.T) {
	settings := settings()
	pod := func(parameters model.Parameters) corev1.PodSpec {
		class := infrastructure.Owner{Object: model.Object{Kind: "IngressClass", Name: "millrace"}}
		for _, object := range infrastructure.Objects(&model.Proxy{Ports: web(), Resources: listens(), Parameters: parameters}, nil, class, settings) {
			if deployment, ok := object.(*appsv1.Deployment); ok {
				return deployment.Spec.Template.Spec
			}
		}
		t.Fatal("no Deployment found")
		return corev1.PodSpec{}
	}
	want := model.Parameters{
		PullSecrets:  []corev1.LocalObjectReference{{Name: "registry"}},
		NodeSelector: map[string]string{"kubernetes.io/arch": "amd64"},
		Tolerations:  []corev1.Toleration{{Key: "edge", Operator: corev1.TolerationOpExists}},
	}
	for _, parameters := range []model.Parameters{want, {}} {
		spec := pod(parameters)
		got := model.Parameters{PullSecrets: spec.ImagePullSecrets, NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations}
		if !reflect.DeepEqual(got, parameters) {
			t.Errorf("pod parameters = %+v, want %+v", got, parameters)
		}
	}
	settings.PullSecrets = []corev1.LocalObjectReference{{Name: "of-the-gateway"}}
	if got := pod(model.Parameters{}).ImagePullSecrets; !reflect.DeepEqual(got, settings.PullSecrets) {
		t.Errorf("pull secrets without parameters = %v, want %v", got, settings.PullSecrets)
	}
	if got := pod(want).ImagePullSecrets; !reflect.DeepEqual(got, want.PullSecrets) {
		t.Errorf("pull secrets = %v, want %v of the parameters", got, want.PullSecrets)
	}
}
