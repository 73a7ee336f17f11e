// SPDX-License-Identifier: Apache-2.0

package review

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/convert"
)

// keyDomain is the prefix of Millrace's annotations and labels.
const keyDomain = "millrace.io"

var removable = []string{"LBPeer", "Service", "VIP", "VIPAdvertisement", "VIPPool", "VIPRoute"}

// annotations and userLabels list the kinds that each key has an effect on.
var (
	annotations = map[string][]string{
		millracev1beta1.AnnotationAddresses:      {"Service"},
		millracev1beta1.AnnotationPool:           {"Service"},
		millracev1beta1.AnnotationSharingKey:     {"Service"},
		millracev1beta1.AnnotationConfirmRemoval: removable,
		millracev1beta1.AnnotationDrain:          {"Node"},
		keyDomain + "/proxy-protocol":            {"Service"},
		keyDomain + "/ssl-redirect":              {"Ingress"},
		keyDomain + "/dedicated-vip":             {"Ingress"},
		keyDomain + "/rotate":                    {"Secret"},
	}
	userLabels = map[string][]string{
		millracev1beta1.LabelServiceDefaults: {"Namespace", "Service"},
		millracev1beta1.LabelAnnouncer:       {"Node"},
	}
)

// programKeys are the keys that programs of Millrace write.
var programKeys = []string{
	millracev1beta1.AnnotationClass, keyDomain + "/proxy-of", keyDomain + "/rejected-resources", keyDomain + "/draining",
	keyDomain + "/applied", keyDomain + "/release-services", keyDomain + "/uninstalling",
}

// Keys returns warnings about annotations and labels of Millrace without an effect on an object: unknown
// ones, and those for other kinds.
func Keys(kind string, object metav1.Object) []string {
	return append(unknownKeys(kind, "metadata.annotations", object.GetAnnotations(), annotations, userLabels),
		unknownKeys(kind, "metadata.labels", object.GetLabels(), userLabels, annotations)...)
}

// unknownKeys compares the keys of a field with its own ones and those of the other field of metadata.
func unknownKeys(kind, field string, given map[string]string, own, other map[string][]string) (warnings []string) {
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if !isOurs(key) || slices.Contains(programKeys, key) || slices.Contains(own[key], kind) {
			continue
		}
		var advice string
		switch similar := desired.Nearest(key, keysOf(own, kind)); {
		case own[key] != nil:
			advice = fmt.Sprintf("has no effect on a %s: it is for %s", kind, strings.Join(own[key], ", "))
		case slices.Contains(other[key], kind) && field == "metadata.labels":
			advice = "has no effect: it is an annotation, not a label"
		case slices.Contains(other[key], kind):
			advice = "has no effect: it is a label, not an annotation"
		case similar != "":
			advice = fmt.Sprintf("is unknown and has no effect: did you mean %s?", similar)
		default:
			advice = "is unknown and has no effect: remove it"
			if known := keysOf(own, kind); len(known) > 0 {
				advice = fmt.Sprintf("is unknown and has no effect: a %s can have %s", kind, strings.Join(known, ", "))
			}
		}
		warnings = append(warnings, fmt.Sprintf("%s[%s]: %s", field, key, advice))
	}
	return warnings
}

// isOurs reports whether the domain of a key is, contains, or resembles that of Millrace.
func isOurs(key string) bool {
	domain, _, _ := strings.Cut(strings.ToLower(key), "/")
	name, _, _ := strings.Cut(keyDomain, ".")
	return strings.Contains(domain, name) || desired.Nearest(domain, []string{keyDomain}) != ""
}

func keysOf(of map[string][]string, kind string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(of)), func(key string) bool { return !slices.Contains(of[key], kind) })
}

// Class returns a warning about a load balancer class that resembles that of the operator, unless a Service
// has an address of this class from another operator.
func Class(own desired.Class, service *corev1.Service, services []corev1.Service) []string {
	class, name := service.Spec.LoadBalancerClass, cmp.Or(own.Name, millracev1beta1.Class)
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer || class == nil || !resembles(*class, name) {
		return nil
	}
	served := func(other corev1.Service) bool { return other.Annotations[millracev1beta1.AnnotationClass] == *class }
	if served(*service) || slices.ContainsFunc(services, served) {
		return nil
	}
	return []string{fmt.Sprintf("spec.loadBalancerClass: %q is not the class %q, so Millrace gives the Service no address: "+
		"create the Service again with that class, because this field cannot be changed", *class, name)}
}

// resembles reports whether a name differs from another one, but contains its first word or is similar.
func resembles(given, name string) bool {
	word := name[:strings.IndexAny(name+"/", "./")]
	return given != name && (strings.Contains(strings.ToLower(given), word) || desired.Nearest(given, []string{name}) != "")
}

// IngressClass returns a warning about a class of an Ingress that resembles that of Millrace and does not
// exist.
func IngressClass(field, class string, existing []string) []string {
	if slices.Contains(existing, class) || class == "" || !slices.ContainsFunc(existing, func(name string) bool { return resembles(class, name) }) {
		return nil
	}
	return []string{fmt.Sprintf("%s: there is no IngressClass %q, so Millrace ignores the Ingress: did you mean %q?",
		field, class, desired.Nearest(class, existing))}
}

// requests returns warnings about annotations that request addresses without an effect: those of a Service of
// another type, and those of other load balancers that the operator does not read.
func requests(reading convert.Parser, service *corev1.Service) (warnings []string) {
	balanced := service.Spec.Type == corev1.ServiceTypeLoadBalancer
	for _, key := range slices.Sorted(maps.Keys(service.Annotations)) {
		read, own := slices.Contains(reading.AddressAnnotations(), key), convert.Replacement(key)
		switch {
		case read && !balanced:
			warnings = append(warnings, fmt.Sprintf(
				"metadata.annotations[%s]: has no effect on a Service of type %s: set spec.type to LoadBalancer, or remove the annotation",
				key, cmp.Or(service.Spec.Type, corev1.ServiceTypeClusterIP)))
		case !read && balanced && own != "":
			warnings = append(warnings, fmt.Sprintf("metadata.annotations[%s]: has no effect: use %s, "+
				"or add the load balancer of this annotation to --annotations-of of the operator", key, own))
		}
	}
	return warnings
}
