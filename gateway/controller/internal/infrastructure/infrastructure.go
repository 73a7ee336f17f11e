// SPDX-License-Identifier: Apache-2.0

// Package infrastructure computes the cluster objects of an owner (IngressClass, Ingress with its own VIP, or
// Gateway), which package write applies. It is pure.
//
// Names and labels follow GEP-1762. An owner's objects share a namespace and, except for VIPRoutes and
// EndpointSlices, a name. The namespace is that of the Gateway or Ingress, so that its TLS keys stay there, or
// the controller's.
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

	"github.com/millrace-lb/millrace/gateway/route/model"
)

const (
	// LabelOwner is a label of an owner's proxies. Its value is a hash of the owner's key and selects the pods.
	LabelOwner = "millrace.io/proxy-of"
	// AnnotationOwner is an annotation with the owner's key, "Gateway/namespace/name".
	AnnotationOwner = model.AnnotationProxyOf
	// LabelGateway is the name of the Gateway, on all objects of its proxies (GEP-1762).
	LabelGateway = "gateway.networking.k8s.io/gateway-name"
	// LabelGatewayClass is the name of the Gateway's GatewayClass, on the same objects.
	LabelGatewayClass = "gateway.networking.k8s.io/gateway-class-name"
	labelName         = "app.kubernetes.io/name"
	labelComponent    = "app.kubernetes.io/component"
	labelManagedBy    = "app.kubernetes.io/managed-by"
)

// Audience is the audience of the proxies' service account tokens.
const Audience = "millrace-gateway"

// AdminPort serves a proxy's probes and metrics.
const AdminPort = 15090

// MetricsSecret is the Secret in the controller's namespace with the client certificate for a proxy's metrics.
const MetricsSecret = "millrace-proxy-metrics"

const (
	caDirectory    = "/etc/millrace/controller"
	tokenDirectory = "/var/run/secrets/millrace"
	storeDirectory = "/var/lib/millrace"
	// CAKey is the key of the ConfigMap with the controller's CAs.
	CAKey = "ca.crt"
)

const defaultReplicas = 2

// Object is any API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Settings apply to all owners.
type Settings struct {
	Namespace string
	// LoadBalancerClass is the class of the proxies' Services; defaults to millrace.io/lb.
	LoadBalancerClass string
	// Image and PullPolicy apply to the proxy container; PullPolicy may be empty.
	Image      string
	PullPolicy corev1.PullPolicy
	// PullSecrets apply to proxies whose parameters do not specify any.
	PullSecrets []corev1.LocalObjectReference
	// Controller is the controller's "host:port" for proxies, ServerName the DNS name in its certificate.
	Controller, ServerName   string
	CAs                      string
	CPU, Memory, MemoryLimit resource.Quantity
	// Certificates are those that the proxies of all owners serve.
	Certificates []model.Certificate
}

// Owner is the object that proxies serve.
type Owner struct {
	model.Object
	// UID is optional for an IngressClass.
	UID   types.UID
	Class string
}

// ObjectKey returns the name and namespace of the owner's objects.
func (o Owner) ObjectKey(settings Settings) types.NamespacedName {
	namespace := cmp.Or(o.Namespace, settings.Namespace)
	name := strings.ToLower(o.Kind) + "-" + o.Name
	if o.Kind == kindGateway {
		name = o.Name + "-" + cmp.Or(o.Class, "millrace")
	}
	// Service names have the strictest rules: no dots, at most 63 bytes, a letter first.
	if len(validation.IsDNS1035Label(name)) > 0 {
		readable := strings.ReplaceAll(name[:min(len(name), 40)], ".", "-")
		name = "p-" + strings.TrimRight(readable, "-") + "-" + hash(o.Kind + "/" + name)[:12]
	}
	return types.NamespacedName{Namespace: namespace, Name: name}
}

const (
	kindGateway = "Gateway"
)

// Key returns the owner's unique key, used by the distribution server and in annotations.
func Key(owner model.Object) string {
	return model.OwnerKey(owner)
}

// hash shortens labels, which are not trusted: authentication uses the compiled owners.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// Objects returns an owner's objects in order of application: none without ports, and no proxies without a
// layer-7 listener.
func Objects(proxy *model.Proxy, frontends []*model.Frontend, owner Owner, settings Settings) []Object {
	if len(proxy.Ports) == 0 && len(frontends) == 0 {
		return nil
	}
	p := planner{proxy: proxy, frontends: frontends, owner: owner, settings: settings, at: owner.ObjectKey(settings)}
	var objects []Object
	// VIPRoutes come first, because without one the Service's port would lead to the proxies.
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

type planner struct {
	proxy     *model.Proxy
	frontends []*model.Frontend
	owner     Owner
	settings  Settings
	at        types.NamespacedName
}

func (p planner) replicas() int32 { return cmp.Or(p.proxy.Parameters.Replicas, defaultReplicas) }

func (p planner) scales() bool { return p.proxy.Parameters.MaxReplicas > p.replicas() }

func (p planner) metadata() metav1.ObjectMeta {
	annotations := map[string]string{}
	maps.Copy(annotations, p.proxy.Annotations)
	annotations[AnnotationOwner] = Key(p.owner.Object)
	metadata := metav1.ObjectMeta{
		Namespace: p.at.Namespace, Name: p.at.Name, Labels: p.labels(), Annotations: annotations,
	}
	// An owner of another namespace cannot be an ownerReference; its objects are deleted by label.
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

// PodSelector returns the labels that select the owner's pods in their namespace.
func PodSelector(owner model.Object) map[string]string {
	all := Selector()
	all[LabelOwner] = hash(Key(owner))
	return all
}

// Selector returns the labels that select the objects of all owners.
func Selector() map[string]string {
	return map[string]string{labelName: "millrace", labelComponent: "proxy"}
}

func labelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	return strings.TrimRight(name[:min(len(name), 30)], ".-") + "-" + hash(name)
}
