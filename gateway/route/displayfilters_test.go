// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

func checkFilters(t *testing.T, result *model.Result, wanted []string) {
	for _, line := range wanted {
		request, want, found := strings.Cut(line, "=>")
		if !found {
			t.Fatalf("line %q without =>", line)
		}
		if got := done(t, result, strings.TrimSpace(request)); got != strings.TrimSpace(want) {
			t.Errorf("%s\n   is %s\nwant %s", request, got, strings.TrimSpace(want))
		}
	}
}

func done(t *testing.T, result *model.Result, line string) string {
	owner, rest, _ := strings.Cut(line, " ")
	request, err := parseRequest(strings.Fields(rest))
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	for _, proxy := range result.Proxies {
		if proxy.Owner.Name != owner {
			continue
		}
		rule := routetest.Match(proxy.Resources, request).Rule
		var all []string
		for _, filter := range rule.GetFilters() {
			all = append(all, displayFilter(proxy.Resources, filter))
		}
		if retry := rule.GetRetry(); retry != nil {
			all = append(all, strings.TrimSpace(fmt.Sprintf("retry %d %s", retry.Attempts, strings.Trim(fmt.Sprint(retry.Statuses), "[]"))))
		}
		if session := rule.GetSessionPersistence(); session != nil {
			all = append(all, strings.TrimSpace(fmt.Sprintf("session %s %d %s", session.SessionName, session.AbsoluteTimeout, session.Path)))
		}
		return strings.Join(all, "; ")
	}
	return "no proxy"
}

func displayFilter(resources []*resource.Resource, filter *resource.Filter) string {
	switch kind := filter.GetKind().(type) {
	case *resource.Filter_ClientAddresses:
		text := "addresses "
		if kind.ClientAddresses.Sufficient {
			text = "sufficient addresses "
		}
		return strings.TrimSpace(text + strings.Join(kind.ClientAddresses.Allow, ",") + " not " + strings.Join(kind.ClientAddresses.Deny, ","))
	case *resource.Filter_ClientLimit:
		of := kind.ClientLimit
		return strings.TrimSpace(fmt.Sprintf("limit %s %d/%d burst %d at once %d %s",
			of.Zone, of.Requests, of.Period, of.Burst, of.Concurrent, strings.Join(of.Exempt, ",")))
	case *resource.Filter_BasicAuthentication:
		text := fmt.Sprintf("password %q", kind.BasicAuthentication.Realm)
		for _, found := range resources {
			if found.Name == kind.BasicAuthentication.Users {
				text += " " + strings.Join(strings.Fields(string(found.GetUsers().GetHtpasswd())), " ")
			}
		}
		return text
	case *resource.Filter_ExternalAuthorization:
		of := kind.ExternalAuthorization
		text := fmt.Sprintf("ask %s %s ", of.Backend, of.Method)
		if of.AsRequested {
			text += "as requested "
		}
		text += of.Host + of.Path
		if !slices.Equal(of.RequestHeaders, []string{"*"}) && len(of.RequestHeaders) > 0 {
			text += " with " + strings.Join(of.RequestHeaders, ",")
		}
		text += fmt.Sprintf(" for %s sign in %s", strings.Join(of.ResponseHeaders, ","), of.SignIn)
		return strings.Join(strings.Fields(text), " ")
	case *resource.Filter_BodyLimit:
		return fmt.Sprintf("body %d", kind.BodyLimit.Bytes)
	case *resource.Filter_Cors:
		of := kind.Cors
		return fmt.Sprintf("cors %s credentials %v age %d", strings.Join(of.AllowOrigins, ","), of.AllowCredentials, of.MaxAgeSeconds)
	case *resource.Filter_Redirect:
		of := kind.Redirect
		return fmt.Sprintf("redirect %d %s%s%s%s", of.Status, of.Location, of.Scheme, of.Hostname, of.Path.GetReplaceFullPath())
	case *resource.Filter_Rewrite:
		text := "rewrite"
		if host := kind.Rewrite.Hostname; host != "" {
			text += " host " + host
		}
		if path := kind.Rewrite.Path.GetReplaceFullPath(); path != "" {
			text += " path " + path
		}
		if change := kind.Rewrite.Path.GetExpression(); change != nil {
			text += " " + change.Pattern + " to " + change.Substitution
		}
		return text
	case *resource.Filter_RequestHeaders:
		return "request " + displayHeaders(kind.RequestHeaders)
	case *resource.Filter_ResponseHeaders:
		return "response " + displayHeaders(kind.ResponseHeaders)
	case *resource.Filter_Mirror:
		return "mirror " + strings.TrimPrefix(kind.Mirror.Backend, "backend/")
	}
	return fmt.Sprint(filter)
}

func displayHeaders(of *resource.HeaderChange) string {
	var all []string
	for _, header := range of.Set {
		all = append(all, header.Name+": "+header.Value)
	}
	for _, header := range of.Add {
		all = append(all, "+"+header.Name+": "+header.Value)
	}
	for _, name := range of.Remove {
		all = append(all, "-"+name)
	}
	return strings.Join(all, ", ")
}
