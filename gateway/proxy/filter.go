// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/rewrite"
	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

type filters struct {
	request, response []headerChange
	// host is the value for Host, which net/http stores separately from the header.
	host       string
	redirect   *resource.Redirect
	rewrite    *resource.Rewrite
	expression *rewrite.Expression
	mirrors    []*resource.Mirror
	cors       *cors
	guards     guards
}

func newFilters(route string, list []*resource.Filter) (filters, error) {
	var f filters
	for i, filter := range list {
		if err := f.add(route, filter); err != nil {
			return f, fmt.Errorf("filter %d %w", i, err)
		}
	}
	return f, nil
}

func (f *filters) add(route string, filter *resource.Filter) error {
	switch kind := filter.GetKind().(type) {
	case *resource.Filter_RequestHeaders:
		change := newHeaderChange(kind.RequestHeaders)
		f.host = cmp.Or(change.removeHost(), f.host)
		f.request = append(f.request, change)
	case *resource.Filter_ResponseHeaders:
		f.response = append(f.response, newHeaderChange(kind.ResponseHeaders))
	case *resource.Filter_Redirect:
		f.redirect = kind.Redirect
		return unreadable("redirect", plan.CheckRedirect(kind.Redirect))
	case *resource.Filter_Rewrite:
		return unreadable("rewrite", f.addRewrite(kind.Rewrite))
	case *resource.Filter_Mirror:
		f.mirrors = append(f.mirrors, kind.Mirror)
	case *resource.Filter_Cors:
		f.cors = newCORS(kind.Cors)
	case *resource.Filter_ClientAddresses:
		return unreadable("client addresses", f.guards.addList(kind.ClientAddresses))
	case *resource.Filter_BodyLimit:
		f.guards.limitBody(kind.BodyLimit.GetBytes())
	case *resource.Filter_BasicAuthentication:
		return unreadable("basic authentication", f.guards.requirePassword(kind.BasicAuthentication))
	case *resource.Filter_ExternalAuthorization:
		return unreadable("external authorization", f.guards.addAuthorization(kind.ExternalAuthorization))
	case *resource.Filter_ClientLimit:
		return unreadable("client limit", f.guards.limitClients(kind.ClientLimit, route))
	default:
		// Reject unknown filters, because they may restrict access.
		return errors.New("is of a kind that is not known")
	}
	return nil
}

func unreadable(kind string, err error) error {
	if err != nil {
		return fmt.Errorf("(%s): %w", kind, err)
	}
	return nil
}

// headerChange is a header filter with canonical names.
type headerChange struct {
	set, add []*resource.Header
	remove   []string
}

func newHeaderChange(r *resource.HeaderChange) headerChange {
	canonical := func(headers []*resource.Header) []*resource.Header {
		list := make([]*resource.Header, 0, len(headers))
		for _, h := range headers {
			list = append(list, &resource.Header{Name: textproto.CanonicalMIMEHeaderKey(h.GetName()), Value: h.GetValue()})
		}
		return list
	}
	change := headerChange{set: canonical(r.GetSet()), add: canonical(r.GetAdd())}
	for _, name := range r.GetRemove() {
		change.remove = append(change.remove, textproto.CanonicalMIMEHeaderKey(name))
	}
	return change
}

// removeHost removes and returns the value for Host. A value to set takes precedence over one to add.
func (c *headerChange) removeHost() string {
	host := ""
	take := func(headers []*resource.Header) []*resource.Header {
		return slices.DeleteFunc(headers, func(h *resource.Header) bool {
			if h.GetName() != "Host" {
				return false
			}
			host = cmp.Or(host, h.GetValue())
			return true
		})
	}
	c.set, c.add = take(c.set), take(c.add)
	return host
}

func changeHeaders(changes []headerChange, header http.Header) {
	for i := range changes {
		for _, h := range changes[i].set {
			header[h.Name] = []string{h.Value}
		}
		for _, h := range changes[i].add {
			header[h.Name] = append(header[h.Name], h.Value)
		}
		for _, name := range changes[i].remove {
			delete(header, name)
		}
	}
}

func (f *filters) addRewrite(of *resource.Rewrite) (err error) {
	f.rewrite, f.expression = of, nil
	if change := of.GetPath().GetExpression(); change != nil {
		f.expression, err = rewrite.New(change)
		return err
	}
	return plan.CheckPathChange(of.GetPath())
}

func (f *filters) changesPath() bool { return f.rewrite.GetPath() != nil }

func rewriteTarget(of *resource.Rewrite, prefix string, out *http.Request) {
	if of.GetHostname() != "" {
		out.Host = of.GetHostname()
	}
	out.URL.Path, out.URL.RawPath = plan.ChangePath(of.GetPath(), prefix, out.URL)
}
