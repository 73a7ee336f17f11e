// SPDX-License-Identifier: Apache-2.0

// Package infrastructure says which objects of the cluster serve an owner: an IngressClass, an
// Ingress with its own VIP, or a Gateway. These are the VIP's Service, what runs the proxies,
// and a VIPRoute and EndpointSlices for each listener of layer 4. It is pure; applying them is the
// reconciler's.
//
// Names and labels are those of GEP-1762 of Gateway API. All objects of an owner have one
// namespace and, but for VIPRoutes and EndpointSlices, one name. For a Gateway or an Ingress that is its own namespace, so that its
// keys stay there; for an IngressClass it is that of the controller.
package infrastructure

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millrace-lb/millrace/gateway/route"
)

// Labels and annotations of the objects.
const (
	// LabelOwner is an annotation of each object that runs the proxies of an owner: its kind,
	// namespace and name, joined by slashes. As a label it has a hash of that, which selects the pods.
	LabelOwner = "millrace.io/proxy-of"
	// AnnotationOwner is the owner itself: "Gateway/namespace/name".
	AnnotationOwner = route.AnnotationProxyOf
	// LabelGateway is, on what runs a Gateway's proxies, the name of the Gateway (GEP-1762).
	LabelGateway = "gateway.networking.k8s.io/gateway-name"
	// LabelGatewayClass is, beside it, the name of the GatewayClass.
	LabelGatewayClass = "gateway.networking.k8s.io/gateway-class-name"
	labelName         = "app.kubernetes.io/name"
	labelComponent    = "app.kubernetes.io/component"
	labelManagedBy    = "app.kubernetes.io/managed-by"
)

// Audience is that of the token by which a proxy proves itself to the controller.
const Audience = "millrace-gateway"

// AdminPort is where a proxy serves its probes and metrics.
const AdminPort = 15090

// What is mounted into a proxy.
const (
	caDirectory    = "/etc/millrace/controller"
	tokenDirectory = "/var/run/secrets/millrace"
	storeDirectory = "/var/lib/millrace"
	// CAKey is the key of the ConfigMap that holds the controller's CAs.
	CAKey = "ca.crt"
)

const defaultReplicas = 2

// Object is any object of the API.
type Object interface {
	metav1.Object
	runtime.Object
}

// Settings are the same for all owners.
type Settings struct {
	// Namespace is that of the controller.
	Namespace string
	// LoadBalancerClass is that of the proxies' Services; empty: millrace.io/lb.
	LoadBalancerClass string
	// Image is that of the proxy, PullPolicy when it is pulled; empty: the cluster's default.
	Image      string
	PullPolicy corev1.PullPolicy
	// PullSecrets are those of proxies whose parameters have none.
	PullSecrets []corev1.LocalObjectReference
	// Controller is "host:port" of the controller for proxies, ServerName the name that its
	// certificate has.
	Controller, ServerName string
	// CAs are those that sign the controller's certificate, in PEM.
	CAs string
	// CPU and Memory are requested for each proxy; MemoryLimit bounds it.
	CPU, Memory, MemoryLimit resource.Quantity
}

// Owner is what proxies work for, as it is in the cluster.
type Owner struct {
	route.Object
	// UID is that of the object; it is not needed for an IngressClass.
	UID types.UID
	// Class is the GatewayClass of a Gateway.
	Class string
}

// Place is the name and namespace of all objects of an owner.
func (o Owner) Place(settings Settings) types.NamespacedName {
	namespace := cmp.Or(o.Namespace, settings.Namespace)
	name := strings.ToLower(o.Kind) + "-" + o.Name
	if o.Kind == kindGateway {
		name = o.Name + "-" + cmp.Or(o.Class, "millrace")
	}
	// A Service has the narrowest rules for names: no dots, 63 bytes, a letter first.
	if len(validation.IsDNS1035Label(name)) > 0 {
		readable := strings.ReplaceAll(name[:min(len(name), 40)], ".", "-")
		name = "p-" + strings.TrimRight(readable, "-") + "-" + hash(o.Kind + "/" + name)[:12]
	}
	return types.NamespacedName{Namespace: namespace, Name: name}
}

const (
	kindGateway = "Gateway"
)

// Key names an owner in one string, for the server of configurations and in annotations.
func Key(owner route.Object) string {
	return route.OwnerKey(owner)
}

// hash is a short text for what is too long for a label. The owner of a label proves
// nothing: what the controller believes is in its own memory.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// Objects are those that serve an owner, each after those that it needs. Without ports it
// needs none; without a listener of layer 7 it needs no proxy.
func Objects(proxy *route.Proxy, frontends []*route.Frontend, owner Owner, settings Settings) []Object {
	if len(proxy.Ports) == 0 && len(frontends) == 0 {
		return nil
	}
	p := planner{proxy: proxy, frontends: frontends, owner: owner, settings: settings, at: owner.Place(settings)}
	var objects []Object
	// A port of the Service without its VIPRoute would lead to the proxies.
	for _, frontend := range frontends {
		objects = append(objects, p.vipRoute(frontend))
	}
	if !proxy.Listens() {
		return append(objects, p.service())
	}
	objects = append(objects, p.serviceAccount(), p.configMap(), p.service(), p.deployment(), p.disruptionBudget())
	if p.scales() {
		objects = append(objects, p.autoscaler())
	}
	return objects
}

// planner makes the objects of one owner.
type planner struct {
	proxy     *route.Proxy
	frontends []*route.Frontend
	owner     Owner
	settings  Settings
	at        types.NamespacedName
}

// replicas is how many proxies run at least.
func (p planner) replicas() int32 { return cmp.Or(p.proxy.Parameters.Replicas, defaultReplicas) }

// scales reports whether the number of proxies follows the load.
func (p planner) scales() bool { return p.proxy.Parameters.MaxReplicas > p.replicas() }

// metadata is that of every object.
func (p planner) metadata() metav1.ObjectMeta {
	annotations := map[string]string{}
	maps.Copy(annotations, p.proxy.Annotations)
	annotations[AnnotationOwner] = Key(p.owner.Object)
	metadata := metav1.ObjectMeta{
		Namespace: p.at.Namespace, Name: p.at.Name, Labels: p.labels(), Annotations: annotations,
	}
	// An owner that has no namespace, or another one, cannot be referred to: what it leaves
	// is removed by label.
	if p.owner.Namespace == p.at.Namespace && p.owner.UID != "" {
		metadata.OwnerReferences = []metav1.OwnerReference{p.reference()}
	}
	return metadata
}

func (p planner) reference() metav1.OwnerReference {
	group := "networking.k8s.io/v1"
	if p.owner.Kind == kindGateway {
		group = "gateway.networking.k8s.io/v1"
	}
	yes := true
	return metav1.OwnerReference{
		APIVersion: group, Kind: p.owner.Kind, Name: p.owner.Name, UID: p.owner.UID, Controller: &yes,
	}
}

// labels are those of every object and of the pods.
func (p planner) labels() map[string]string {
	all := map[string]string{}
	maps.Copy(all, p.proxy.Labels)
	maps.Copy(all, p.selector())
	all[labelManagedBy] = "millrace-gateway"
	if p.owner.Kind == kindGateway {
		all[LabelGateway] = labelValue(p.owner.Name)
		if p.owner.Class != "" {
			all[LabelGatewayClass] = labelValue(p.owner.Class)
		}
	}
	return all
}

func (p planner) selector() map[string]string { return PodSelector(p.owner.Object) }

// PodSelector selects the pods of an owner in its namespace.
func PodSelector(owner route.Object) map[string]string {
	all := Selector()
	all[LabelOwner] = hash(Key(owner))
	return all
}

// Selector selects the objects of all owners.
func Selector() map[string]string {
	return map[string]string{labelName: "millrace", labelComponent: "proxy"}
}

// labelValue is the name of an object as a label: names may be longer.
func labelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	return strings.TrimRight(name[:min(len(name), 30)], ".-") + "-" + hash(name)
}
