// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/pathmatch"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func (r *setCompiler) prepareFilters(ingress *networkingv1.Ingress) {
	settings := r.nginxSettings[ingress]
	if settings == nil || settings.isRefused || settings.isCanary() {
		return
	}
	add := func(filter *resource.Filter) {
		if filter != nil {
			settings.filters = append(settings.filters, filter)
		}
	}
	if len(settings.Allow)+len(settings.Deny) > 0 {
		list := addresses(settings.Allow, settings.Deny)
		list.GetClientAddresses().Sufficient = settings.SatisfyAny
		add(list)
	}
	for _, limit := range clientLimits(ingress, &settings.Limits) {
		add(&resource.Filter{Kind: &resource.Filter_ClientLimit{ClientLimit: limit}})
	}
	if settings.Auth != nil {
		add(r.authentication(ingress, settings.Auth))
	}
	if settings.External != nil {
		add(r.externalAuthorization(ingress, settings.External))
	}
	if settings.BodyLimit > 0 {
		add(&resource.Filter{Kind: &resource.Filter_BodyLimit{BodyLimit: &resource.BodyLimit{Bytes: uint64(settings.BodyLimit)}}})
	}
	if settings.CORS != nil {
		add(&resource.Filter{Kind: &resource.Filter_Cors{Cors: &resource.CORS{
			AllowOrigins: settings.CORS.Origins, AllowMethods: settings.CORS.Methods, AllowHeaders: settings.CORS.Headers,
			ExposeHeaders: settings.CORS.Expose, AllowCredentials: settings.CORS.Credentials, MaxAgeSeconds: settings.CORS.MaxAge,
			OneLabel: true,
		}}})
	}
	add(r.customHeaders(ingress))
	for _, filter := range snippetHeaders(settings.Headers) {
		add(filter)
	}
	add(r.mirrorTarget(ingress))
	if settings.Redirect != nil {
		add(redirectTo(settings.Redirect))
	}
	if settings.Retry != nil {
		settings.retry = &resource.Retry{Attempts: settings.Retry.Attempts, Statuses: settings.Retry.Statuses}
	}
	if settings.Session != nil {
		settings.session = &resource.SessionPersistence{
			SessionName: settings.Session.Cookie, AbsoluteTimeout: uint64(settings.Session.MaxAge.Milliseconds()),
			Permanent: settings.Session.MaxAge > 0,
		}
	}
}

func addresses(allow, deny []netip.Prefix) *resource.Filter {
	return &resource.Filter{Kind: &resource.Filter_ClientAddresses{ClientAddresses: &resource.ClientAddresses{
		Allow: texts(allow), Deny: texts(deny),
	}}}
}

func texts(of []netip.Prefix) []string {
	found := make([]string, 0, len(of))
	for _, prefix := range of {
		found = append(found, prefix.String())
	}
	return found
}

// clientLimits returns the limits of an Ingress, which all of its rules share. The burst is one higher than
// in nginx, which counts only the excess.
func clientLimits(ingress *networkingv1.Ingress, of *nginx.Limits) []*resource.ClientLimit {
	var found []*resource.ClientLimit
	exempt := texts(of.Exempt)
	add := func(limit *resource.ClientLimit) {
		limit.Zone, limit.Exempt = "ingress/"+ingress.Namespace+"/"+ingress.Name, exempt
		found = append(found, limit)
	}
	for _, rate := range []struct{ requests, period uint32 }{{of.PerSecond, 1000}, {of.PerMinute, 60_000}} {
		if rate.requests > 0 {
			burst := min(uint64(rate.requests)*uint64(of.Burst)+1, 1<<31)
			add(&resource.ClientLimit{Requests: rate.requests, Period: uint64(rate.period), Burst: uint32(burst)})
		}
	}
	if of.Connections > 0 {
		add(&resource.ClientLimit{Concurrent: of.Connections})
	}
	return found
}

func (r *setCompiler) authentication(ingress *networkingv1.Ingress, of *nginx.Auth) *resource.Filter {
	at, is := ownKey(ingress, of.Secret)
	if !is {
		r.refuseIngress(ingress, "auth-secret", "the Secret is in another namespace: copy it")
		return nil
	}
	found := &resource.Resource{Name: "users/" + at.Namespace + "/" + at.Name, Kind: &resource.Resource_Users{Users: &resource.Users{}}}
	if of.IsMap {
		found.Name += "/map"
	}
	if !r.Settings.AssumeCertificates {
		secret := r.Index.Users[at]
		if secret == nil {
			r.refuseIngress(ingress, "auth-secret", r.Index.MissingSecret(at, corev1.SecretTypeOpaque).Message)
			return nil
		}
		r.RecordVersion(model.KindSecret, secret)
		text, left := nginx.Users(secret.Data, of.IsMap)
		// A Secret without any line revokes all users.
		if left > 0 && len(text) == 0 {
			r.AddFailure(model.Object{Kind: model.KindSecret, Namespace: at.Namespace, Name: at.Name}, "data", model.ReasonInvalid,
				fmt.Sprintf("data: all %d users have a password that is not supported", left))
		}
		if left > 0 {
			r.annotation(ingress, "auth-secret", model.ReasonInvalid, fmt.Sprintf("Secret %s/%s has %d users with a password that is not bcrypt "+
				"(with a cost of 12 at most), $apr1$, {SHA} or {SSHA}: they are rejected", at.Namespace, at.Name, left))
		}
		if len(text) == 0 {
			r.refuseIngress(ingress, "auth-secret", fmt.Sprintf("Secret %s/%s has no users", at.Namespace, at.Name))
			return nil
		}
		found.GetUsers().Htpasswd = text
	}
	r.proxy.Add(found)
	return &resource.Filter{Kind: &resource.Filter_BasicAuthentication{
		BasicAuthentication: &resource.BasicAuthentication{Users: found.Name, Realm: of.Realm}}}
}

func (r *setCompiler) customHeaders(ingress *networkingv1.Ingress) *resource.Filter {
	settings := r.nginxSettings[ingress]
	if settings.CustomHeaders == "" {
		return nil
	}
	at, is := ownKey(ingress, settings.CustomHeaders)
	if !is || r.Index.ConfigMaps[at] == nil {
		r.annotation(ingress, "custom-headers", model.ReasonNotFound, "there is no ConfigMap "+at.Name+" in the namespace of the Ingress")
		return nil
	}
	r.RecordVersion(model.KindConfigMap, r.Index.ConfigMaps[at])
	change, data := &resource.HeaderChange{}, r.headersOf(ingress)
	for _, name := range slices.Sorted(maps.Keys(data)) {
		value := strings.TrimSpace(data[name])
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\uFFFD' || c == '$' }) || framing[strings.ToLower(name)] {
			r.AddFailure(model.Object{Kind: model.KindConfigMap, Namespace: at.Namespace, Name: at.Name}, "data."+name, model.ReasonInvalid,
				fmt.Sprintf("data.%s: invalid header", name))
			r.annotation(ingress, "custom-headers", model.ReasonInvalid, fmt.Sprintf("%q of ConfigMap %s is not a valid header and is ignored", name, at.Name))
			continue
		}
		change.Set = append(change.Set, &resource.Header{Name: name, Value: value})
	}
	if len(change.Set) == 0 {
		return nil
	}
	return &resource.Filter{Kind: &resource.Filter_ResponseHeaders{ResponseHeaders: change}}
}

func snippetHeaders(of *nginx.Headers) (filters []*resource.Filter) {
	if of == nil {
		return nil
	}
	wire := func(headers []nginx.Header) (all []*resource.Header) {
		for _, header := range headers {
			all = append(all, &resource.Header{Name: header.Name, Value: header.Value})
		}
		return all
	}
	if len(of.SetRequest)+len(of.RemoveRequest) > 0 {
		filters = append(filters, &resource.Filter{Kind: &resource.Filter_RequestHeaders{RequestHeaders: &resource.HeaderChange{
			Set: wire(of.SetRequest), Remove: of.RemoveRequest,
		}}})
	}
	if len(of.SetResponse)+len(of.AddResponse)+len(of.RemoveResponse) > 0 {
		filters = append(filters, &resource.Filter{Kind: &resource.Filter_ResponseHeaders{ResponseHeaders: &resource.HeaderChange{
			Set: wire(of.SetResponse), Add: wire(of.AddResponse), Remove: of.RemoveResponse,
		}}})
	}
	return filters
}

// framing contains the headers that custom headers must not set, because they affect the framing of messages.
var framing = map[string]bool{
	"connection": true, "content-length": true, "keep-alive": true, "te": true, "trailer": true, "transfer-encoding": true,
	"upgrade": true, "proxy-connection": true,
}

func (r *setCompiler) mirrorTarget(ingress *networkingv1.Ingress) *resource.Filter {
	of := r.nginxSettings[ingress].Mirror
	if of == nil {
		return nil
	}
	if of.Namespace != ingress.Namespace {
		r.annotation(ingress, "mirror-target", model.ReasonAnnotationIgnored, "it is not supported: the Service is in another namespace")
		return nil
	}
	name, refused := r.service(types.NamespacedName{Namespace: of.Namespace, Name: of.Service}, "", of.Port, builder.Upstream{Protocol: resource.Backend_HTTP1})
	if refused != nil {
		r.annotation(ingress, "mirror-target", refused.Reason, refused.Message)
	}
	if name == "" {
		return nil
	}
	return &resource.Filter{Kind: &resource.Filter_Mirror{Mirror: &resource.Mirror{Backend: name}}}
}

func redirectTo(of *nginx.Redirect) *resource.Filter {
	return &resource.Filter{Kind: &resource.Filter_Redirect{Redirect: &resource.Redirect{
		Location: of.Location, Scheme: of.Scheme, Hostname: of.Host, Port: of.Port, Status: of.Status,
	}}}
}

func (s *nginxSettings) upstream() builder.Upstream {
	if s == nil {
		return builder.Upstream{Protocol: resource.Backend_HTTP1}
	}
	spec := builder.Upstream{Protocol: resource.Backend_HTTP1, Tls: s.Protocol == nginx.HTTPS || s.Protocol == nginx.GRPCS}
	spec.Unverified = spec.Tls && !s.VerifyBackend
	if s.Protocol == nginx.GRPC || s.Protocol == nginx.GRPCS {
		spec.Protocol = resource.Backend_H2C
	}
	return spec
}

// applyAnnotations applies annotations to a rule. path and backend are those of the rule in the Ingress.
func (r *setCompiler) applyAnnotations(rule *resource.Rule, ingress *networkingv1.Ingress, path string, backend *networkingv1.IngressBackend) {
	settings := r.nginxSettings[ingress]
	switch {
	case settings == nil:
		return
	case settings.isRefused:
		rule.Backends = nil
		return
	}
	settings.rules = append(settings.rules, rule)
	rule.Filters, rule.Retry, rule.SessionPersistence = settings.filters, settings.retry, settings.session
	rewrite := &resource.Rewrite{Hostname: upstreamHost(settings.UpstreamVhost, ingress, backend.Service)}
	if settings.rewrites(path) {
		rewrite.Path = r.rewritePath(ingress, rule, path)
	}
	if settings.Redirect == nil && (rewrite.Hostname != "" || rewrite.Path != nil) {
		rule.Filters = append(slices.Clip(rule.Filters), &resource.Filter{Kind: &resource.Filter_Rewrite{Rewrite: rewrite}})
	}
	if rewrite.Path != nil && settings.ForwardedPrefix != "" {
		rule.Filters = append(slices.Clip(rule.Filters), &resource.Filter{Kind: &resource.Filter_RequestHeaders{
			RequestHeaders: &resource.HeaderChange{Set: []*resource.Header{{Name: "X-Forwarded-Prefix", Value: settings.ForwardedPrefix}}}}})
	}
}

func upstreamHost(text string, ingress *networkingv1.Ingress, service *networkingv1.IngressServiceBackend) string {
	if service == nil || !strings.Contains(text, "$") {
		return text
	}
	port := service.Port.Name
	if port == "" {
		port = strconv.Itoa(int(service.Port.Number))
	}
	host := strings.NewReplacer("$service_name", service.Name, "$service_port", port, "$namespace", ingress.Namespace,
		"$ingress_name", ingress.Name).Replace(text)
	return strings.ToValidUTF8(host, "\uFFFD")
}

func (r *setCompiler) rewritePath(ingress *networkingv1.Ingress, rule *resource.Rule, path string) *resource.PathChange {
	target := r.nginxSettings[ingress].RewriteTarget
	if !strings.ContainsAny(target, "$?") {
		return &resource.PathChange{Kind: &resource.PathChange_ReplaceFullPath{ReplaceFullPath: target}}
	}
	if path == "" {
		path = "/"
	}
	pattern := "(?i)" + path
	if err := pathmatch.ValidateExpression(pattern); err != nil {
		// The backend must not receive requests with the original path.
		r.annotation(ingress, "rewrite-target", model.ReasonInvalid, fmt.Sprintf("the path %q of %s: %v; its requests get 500", path, rule.Route, err))
		rule.Backends = nil
		return nil
	}
	return &resource.PathChange{Kind: &resource.PathChange_Expression{
		Expression: &resource.ExpressionChange{Pattern: pattern, Substitution: target}}}
}
