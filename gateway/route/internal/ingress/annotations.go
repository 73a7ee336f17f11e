// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

type nginxSettings struct {
	*nginx.Settings
	isRefused bool
	// hasNoRoom is true if the Ingress is refused because it exceeds the limit of its namespace.
	hasNoRoom bool
	filters   []*resource.Filter
	retry     *resource.Retry
	session   *resource.SessionPersistence
	steps     int
	// authorization is the authorization request if its backend is that of another rule; otherwise nil.
	rules         []*resource.Rule
	authorization *resource.ExternalAuthorization
}

func (s *nginxSettings) isCanary() bool { return s != nil && s.Canary != nil }

// rewrites reports whether a path is rewritten. As in nginx, a target that equals the path has no effect.
func (s *nginxSettings) rewrites(path string) bool {
	return s.RewriteTarget != "" && s.RewriteTarget != path
}

func (c *compiler) readNginx(ingress *networkingv1.Ingress) {
	readable, broken := readableAnnotations(ingress)
	settings, problems := nginx.Read(readable)
	found := &nginxSettings{Settings: settings}
	c.nginxSettings[ingress] = found
	for _, name := range broken {
		if isGuarded(ingress) {
			c.refuseIngress(ingress, name, "it is not valid UTF-8")
		} else {
			c.annotation(ingress, name, model.ReasonInvalid, "it is not valid UTF-8 and is ignored")
		}
	}
	for _, problem := range problems {
		if found.isCanary() && !strings.HasPrefix(problem.Name, "canary") {
			// The annotations of the Ingress with the same path apply instead.
			continue
		}
		switch {
		case problem.Refuses:
			c.refuseIngress(ingress, problem.Name, problem.Message)
		case problem.Invalid:
			c.annotation(ingress, problem.Name, model.ReasonInvalid, problem.Message)
		default:
			c.annotation(ingress, problem.Name, model.ReasonAnnotationIgnored, problem.Message)
		}
	}
}

// readableAnnotations returns the annotations that are valid UTF-8, and the names of ingress-nginx
// annotations that are not. The API server accepts any bytes from protobuf clients, but messages to proxies
// must be UTF-8. Other strings are validated by the API server or only compared.
func readableAnnotations(ingress *networkingv1.Ingress) (readable map[string]string, broken []string) {
	for name, text := range ingress.Annotations {
		if short, is := strings.CutPrefix(name, nginx.Prefix); is && !utf8.ValidString(text) {
			broken = append(broken, short)
		}
	}
	if len(broken) == 0 {
		return ingress.Annotations, nil
	}
	readable = maps.Clone(ingress.Annotations)
	for _, name := range broken {
		delete(readable, nginx.Prefix+name)
	}
	slices.Sort(broken)
	return readable, broken
}

func (c *compiler) annotation(ingress *networkingv1.Ingress, name, reason, message string) {
	c.AddProblem(ingressObject(ingress), "metadata.annotations["+nginx.Prefix+name+"]", reason, message)
}

// refuseIngress makes all rules of an Ingress answer 500, because serving them without the annotation would
// be unsafe.
func (c *compiler) refuseIngress(ingress *networkingv1.Ingress, name, message string) {
	c.nginxSettings[ingress].isRefused = true
	c.annotation(ingress, name, model.ReasonAnnotationRejected, message+
		"; requests of the Ingress get 500: correct the annotation, or remove it if no client has to be rejected")
}

// refuseGuarded refuses an Ingress with restricting annotations while the parameters of its class are
// invalid.
func (c *compiler) refuseGuarded(ingress *networkingv1.Ingress) {
	for _, name := range slices.Sorted(maps.Keys(ingress.Annotations)) {
		if isGuard(ingress, name) {
			c.nginxSettings[ingress] = &nginxSettings{Settings: &nginx.Settings{}}
			c.refuseIngress(ingress, strings.TrimPrefix(name, nginx.Prefix), "the class has invalid parameters, so the annotation may be enabled")
			return
		}
	}
}

func isGuard(ingress *networkingv1.Ingress, name string) bool {
	short, is := strings.CutPrefix(name, nginx.Prefix)
	return is && nginx.Protects(short) && builder.Protects(name, ingress.Annotations[name])
}

func isGuarded(ingress *networkingv1.Ingress) bool {
	for name := range ingress.Annotations {
		if isGuard(ingress, name) {
			return true
		}
	}
	return false
}

func (c *compiler) headersOf(of *networkingv1.Ingress) map[string]string {
	settings := c.nginxSettings[of]
	if settings == nil || settings.CustomHeaders == "" {
		return nil
	}
	at, is := ownKey(of, settings.CustomHeaders)
	if configMap := c.Index.ConfigMaps[at]; is && configMap != nil {
		return configMap.Data
	}
	return nil
}

func ownKey(of *networkingv1.Ingress, text string) (types.NamespacedName, bool) {
	namespace, name, found := strings.Cut(text, "/")
	if !found {
		return types.NamespacedName{Namespace: of.Namespace, Name: text}, true
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, namespace == of.Namespace
}
