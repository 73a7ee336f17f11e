// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"cmp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
	"github.com/millrace-lb/millrace/gateway/route/parameters"
)

type ingressClass struct {
	name string
	parameters.Class
}

type ingressClasses struct {
	managed map[string]*ingressClass
	// defaultClass is the name of the default class, which may be of another controller.
	defaultClass string
}

// ingressClasses returns this controller's classes. Of several default classes, the newest is used, then the
// first by name, as in the admission plugin.
func (c *compiler) ingressClasses(objects []*networkingv1.IngressClass) ingressClasses {
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
		if class.Spec.Controller == c.Settings.IngressController {
			found.managed[class.Name] = &ingressClass{name: class.Name, Class: c.ingressParameters(class)}
		}
	}
	if standard != nil {
		found.defaultClass = standard.Name
	}
	return found
}

func (c *compiler) ingressParameters(class *networkingv1.IngressClass) parameters.Class {
	reference := class.Spec.Parameters
	if reference == nil {
		return parameters.Class{}
	}
	object := model.Object{Kind: "IngressClass", Name: class.Name}
	if ptr.Deref(reference.APIGroup, "") != "" || reference.Kind != "ConfigMap" {
		c.AddProblem(object, "spec.parameters", model.ReasonUnsupported, "parameters must be a ConfigMap of the core group")
		return parameters.Class{}
	}
	if ptr.Deref(reference.Scope, "") != networkingv1.IngressClassParametersReferenceScopeNamespace {
		c.AddProblem(object, "spec.parameters.scope", model.ReasonInvalid, "a ConfigMap has a namespace: the scope must be Namespace")
		return parameters.Class{}
	}
	at := types.NamespacedName{Namespace: ptr.Deref(reference.Namespace, ""), Name: reference.Name}
	configMap := c.Index.ConfigMaps[at]
	if configMap == nil {
		c.AddProblem(object, "spec.parameters", model.ReasonNotFound, "there is no ConfigMap "+at.Namespace+"/"+at.Name)
		return parameters.Class{Annotations: parameters.UnknownAnnotations}
	}
	c.RecordVersion(model.KindConfigMap, configMap)
	found, problems := parameters.Parse(configMap, true)
	for _, problem := range problems {
		c.AddProblem(model.Object{Kind: "ConfigMap", Namespace: at.Namespace, Name: at.Name},
			"data."+problem.Key, problem.Reason, problem.Message)
	}
	return found
}

// of returns the class of an Ingress, or nil if it is of another controller. The field takes precedence over
// the annotation.
func (c ingressClasses) of(ingress *networkingv1.Ingress) *ingressClass {
	name, annotated := ingress.Annotations[model.AnnotationIngressClass]
	switch {
	case ingress.Spec.IngressClassName != nil:
		name = *ingress.Spec.IngressClassName
	case !annotated:
		name = c.defaultClass
	}
	return c.managed[name]
}

type ingressSet struct {
	owner   model.Object
	class   *ingressClass
	members []*networkingv1.Ingress
	// closed contains the Ingresses of namespaces that exceeded the reserve.
	closed []*networkingv1.Ingress
	// owners are the owners of the hosts. ages are the positions of the Ingresses by age.
	owners *ownership.Hosts
	ages   map[*networkingv1.Ingress]int
	// catchAll is the namespace of the oldest Ingress that has a default backend and no rules.
	catchAll string
}

func (c *compiler) ingressSets(objects *model.Objects) []*ingressSet {
	classes := c.ingressClasses(objects.IngressClasses)
	shared := map[string]*ingressSet{}
	var all []*ingressSet
	for _, ingress := range builder.OldestFirst(objects.Ingresses) {
		class := classes.of(ingress)
		if class == nil {
			continue
		}
		c.RecordVersion(model.KindIngress, ingress)
		switch class.Annotations {
		case parameters.IngressNginx:
			c.readNginx(ingress)
		case parameters.UnknownAnnotations:
			c.refuseGuarded(ingress)
		}
		c.ReportUnprotected(ingressObject(ingress), ingress.Annotations, c.nginxSettings[ingress] != nil)
		dedicated := c.ingressBool(ingress, model.AnnotationDedicatedVIP, class.DedicatedVIP)
		if dedicated {
			all = append(all, &ingressSet{owner: ingressObject(ingress), class: class,
				members: []*networkingv1.Ingress{ingress}})
			continue
		}
		if shared[class.name] == nil {
			shared[class.name] = &ingressSet{owner: model.Object{Kind: "IngressClass", Name: class.name}, class: class}
			all = append(all, shared[class.name])
		}
		shared[class.name].members = append(shared[class.name].members, ingress)
	}
	slices.SortFunc(all, func(a, b *ingressSet) int { return model.CompareObjects(a.owner, b.owner) })
	return all
}

func (c *compiler) ingressBool(ingress *networkingv1.Ingress, annotation string, otherwise bool) bool {
	text, found := ingress.Annotations[annotation]
	if !found {
		return otherwise
	}
	if err := parameters.ParseBool(text, &otherwise); err != nil {
		c.AddProblem(ingressObject(ingress), "metadata.annotations["+annotation+"]", model.ReasonInvalid, err.Error())
	}
	return otherwise
}

func ingressObject(ingress *networkingv1.Ingress) model.Object {
	return model.Object{Kind: model.KindIngress, Namespace: ingress.Namespace, Name: ingress.Name}
}
