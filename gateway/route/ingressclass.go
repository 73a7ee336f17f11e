// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

type ingressClass struct {
	name string
	classParameters
}

type ingressClasses struct {
	managed map[string]*ingressClass
	// defaultClass may be of another controller.
	defaultClass string
}

// ingressClasses prefers the newest of several default classes, then the first by name, as the admission plugin
// does.
func (c *ingressCompiler) ingressClasses(objects []*networkingv1.IngressClass) ingressClasses {
	found := ingressClasses{managed: map[string]*ingressClass{}}
	var standard *networkingv1.IngressClass
	for _, class := range objects {
		if class.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
			if standard == nil || cmp.Or(
				class.CreationTimestamp.Time.Compare(standard.CreationTimestamp.Time),
				-strings.Compare(class.Name, standard.Name)) > 0 {
				standard = class
			}
		}
		if class.Spec.Controller == c.settings.IngressController {
			found.managed[class.Name] = &ingressClass{name: class.Name, classParameters: c.ingressParameters(class)}
		}
	}
	if standard != nil {
		found.defaultClass = standard.Name
	}
	return found
}

func (c *ingressCompiler) ingressParameters(class *networkingv1.IngressClass) classParameters {
	reference := class.Spec.Parameters
	if reference == nil {
		return classParameters{}
	}
	object := Object{Kind: "IngressClass", Name: class.Name}
	if ptr.Deref(reference.APIGroup, "") != "" || reference.Kind != "ConfigMap" {
		c.problem(object, "spec.parameters", ReasonUnsupported, "parameters must be a ConfigMap of the core group")
		return classParameters{}
	}
	if ptr.Deref(reference.Scope, "") != networkingv1.IngressClassParametersReferenceScopeNamespace {
		c.problem(object, "spec.parameters.scope", ReasonInvalid, "a ConfigMap has a namespace: the scope must be Namespace")
		return classParameters{}
	}
	at := types.NamespacedName{Namespace: ptr.Deref(reference.Namespace, ""), Name: reference.Name}
	configMap := c.index.configMaps[at]
	if configMap == nil {
		c.problem(object, "spec.parameters", ReasonNotFound, "there is no ConfigMap "+at.Namespace+"/"+at.Name)
		return classParameters{annotations: annotationsUnknown}
	}
	c.recordVersion(kindConfigMap, configMap)
	found, problems := parseParameters(configMap, true)
	for _, problem := range problems {
		c.problem(Object{Kind: "ConfigMap", Namespace: at.Namespace, Name: at.Name},
			"data."+problem.key, problem.reason, problem.message)
	}
	return found
}

// of returns an Ingress's class, or nil for another controller's. The field precedes the annotation.
func (c ingressClasses) of(ingress *networkingv1.Ingress) *ingressClass {
	name, annotated := ingress.Annotations[AnnotationIngressClass]
	switch {
	case ingress.Spec.IngressClassName != nil:
		name = *ingress.Spec.IngressClassName
	case !annotated:
		name = c.defaultClass
	}
	return c.managed[name]
}

type ingressSet struct {
	owner   Object
	class   *ingressClass
	members []*networkingv1.Ingress
	// closed are the Ingresses of namespaces that exceeded the reserve.
	closed []*networkingv1.Ingress
	// owners are the owners of hosts; ages are the positions of the Ingresses by age.
	owners *ownership.Hosts
	ages   map[*networkingv1.Ingress]int
	// catchAll is the namespace of the oldest Ingress that has a default backend and no rules.
	catchAll string
}

func (c *ingressCompiler) ingressSets(objects *Objects) []*ingressSet {
	classes := c.ingressClasses(objects.IngressClasses)
	shared := map[string]*ingressSet{}
	var all []*ingressSet
	for _, ingress := range oldestFirst(objects.Ingresses) {
		class := classes.of(ingress)
		if class == nil {
			continue
		}
		c.recordVersion(kindIngress, ingress)
		switch class.annotations {
		case annotationsOfNginx:
			c.readNginx(ingress)
		case annotationsUnknown:
			c.refuseGuarded(ingress)
		}
		c.unprotected(ingressObject(ingress), ingress.Annotations, c.nginxSettings[ingress] != nil)
		dedicated := c.ingressBool(ingress, AnnotationDedicatedVIP, class.dedicatedVIP)
		if dedicated {
			all = append(all, &ingressSet{owner: ingressObject(ingress), class: class,
				members: []*networkingv1.Ingress{ingress}})
			continue
		}
		if shared[class.name] == nil {
			shared[class.name] = &ingressSet{owner: Object{Kind: "IngressClass", Name: class.name}, class: class}
			all = append(all, shared[class.name])
		}
		shared[class.name].members = append(shared[class.name].members, ingress)
	}
	slices.SortFunc(all, func(a, b *ingressSet) int { return compareObjects(a.owner, b.owner) })
	return all
}

func (c *ingressCompiler) ingressBool(ingress *networkingv1.Ingress, annotation string, otherwise bool) bool {
	text, found := ingress.Annotations[annotation]
	if !found {
		return otherwise
	}
	if err := parseBool(text, &otherwise); err != nil {
		c.problem(ingressObject(ingress), "metadata.annotations["+annotation+"]", ReasonInvalid, err.Error())
	}
	return otherwise
}

func ingressObject(ingress *networkingv1.Ingress) Object {
	return Object{Kind: kindIngress, Namespace: ingress.Namespace, Name: ingress.Name}
}
