// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// admit removes the youngest Ingresses of namespaces that exceed their limit. The paths of removed Ingresses
// that protect answer 500.
func (c *compiler) admit(of *ingressSet) {
	room, bytes := builder.NewBudget(c.Settings.NamespaceBytes), make([]int64, len(of.members))
	certificates := builder.CertificateSet{}
	c.readWidest(of.members)
	for i, ingress := range of.members {
		bytes[i] = c.ingressBytes(ingress, certificates)
		room.Used[ingress.Namespace] += bytes[i]
	}
	room.Share(c.Settings.ProxyBytes)
	room.Reset()
	admitted := make([]*networkingv1.Ingress, 0, len(of.members))
	for i, ingress := range of.members {
		if room.Allocate(ingress.Namespace, bytes[i]) {
			admitted = append(admitted, ingress)
			continue
		}
		refused := c.LimitExceeded("spec", ingress.Namespace)
		c.Result.Problems = append(c.Result.Problems, model.Problem{
			Object: ingressObject(ingress), Field: "spec", Reason: refused.Reason, Message: refused.Message,
		})
		c.AddFailure(ingressObject(ingress), "spec", refused.Reason, refused.Message)
		if c.nginxSettings[ingress] != nil && isGuarded(ingress) && room.AllocateReserve(ingress.Namespace, closedBytes(ingress)) {
			c.nginxSettings[ingress].isRefused, c.nginxSettings[ingress].hasNoRoom = true, true
			admitted = append(admitted, ingress)
		}
	}
	for _, ingress := range of.members {
		if room.Closed[ingress.Namespace] {
			of.closed = append(of.closed, ingress)
		}
	}
	of.members = slices.DeleteFunc(admitted, func(ingress *networkingv1.Ingress) bool { return room.Closed[ingress.Namespace] })
}

func closedBytes(of *networkingv1.Ingress) (bytes int64) {
	for i := range of.Spec.Rules {
		rule := &of.Spec.Rules[i]
		bytes += builder.EntryBytes + int64(len(rule.Host))
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			bytes += builder.PathBytes + int64(len(rule.HTTP.Paths[j].Path)+len(of.Namespace)+len(of.Name))
		}
	}
	return bytes
}

// ingressBytes estimates the encoded size of an Ingress in bytes, with the certificates that were not counted
// yet.
func (c *compiler) ingressBytes(of *networkingv1.Ingress, certificates builder.CertificateSet) (bytes int64) {
	annotations := c.annotationBytes(of)
	bytes = c.usersBytes(of)
	for i := range of.Spec.Rules {
		rule := &of.Spec.Rules[i]
		bytes += builder.EntryBytes + int64(len(rule.Host))
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			path := &rule.HTTP.Paths[j]
			bytes += builder.PathBytes + int64(len(path.Path)+2*len(of.Namespace)+len(of.Name)) + annotations
			if path.Backend.Service != nil {
				bytes += int64(len(path.Backend.Service.Name))
			}
		}
	}
	if of.Spec.DefaultBackend != nil {
		bytes += annotations
	}
	for i := range of.Spec.TLS {
		entry := &of.Spec.TLS[i]
		bytes += builder.EntryBytes * int64(max(len(entry.Hosts), 1))
		if entry.SecretName == "" {
			continue
		}
		if found, refused := c.CertificateOf(types.NamespacedName{Namespace: of.Namespace, Name: entry.SecretName}); refused == nil {
			bytes += certificates.Bytes([]*certificate.Certificate{found})
		}
	}
	return bytes
}

// canaryRules is the maximum number of rules that a canary adds to a path.
const canaryRules = 4

func (c *compiler) readWidest(of []*networkingv1.Ingress) {
	for _, ingress := range of {
		if settings := c.nginxSettings[ingress]; settings != nil && !settings.isCanary() {
			c.widest[ingress.Namespace] = max(c.widest[ingress.Namespace], c.annotationBytes(ingress))
		}
	}
}

// annotationBytes estimates the encoded size in bytes that annotations add to each path of an Ingress.
func (c *compiler) annotationBytes(of *networkingv1.Ingress) (bytes int64) {
	settings := c.nginxSettings[of]
	switch {
	case settings == nil:
		return 0
	case settings.isCanary():
		return canaryRules * (c.widest[of.Namespace] + builder.PathBytes)
	}
	for name, value := range of.Annotations {
		if strings.HasPrefix(name, nginx.Prefix) {
			// An entry of a list can be a single letter, and is encoded as a message.
			bytes += builder.PathBytes + 2*int64(len(value))
		}
	}
	for name, value := range c.headersOf(of) {
		bytes += builder.PathBytes + int64(len(name)+len(value))
	}
	return bytes
}

func (c *compiler) usersBytes(of *networkingv1.Ingress) (bytes int64) {
	settings := c.nginxSettings[of]
	if settings == nil || settings.Auth == nil {
		return 0
	}
	if at, is := ownKey(of, settings.Auth.Secret); is && c.Index.Users[at] != nil {
		for _, content := range c.Index.Users[at].Data {
			bytes += int64(len(content))
		}
	}
	return bytes
}
