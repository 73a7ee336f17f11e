// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/access"
	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// filters are what a rule, or one of its backends, does to requests and responses.
type filters struct {
	request, response []headerChange
	// host is what a change of the request's header sets Host to; empty where none does.
	// net/http has it apart from the header, where only a client could have put one.
	host     string
	redirect *resource.Redirect
	rewrite  *resource.Rewrite
	mirrors  []*resource.Mirror
	cors     *cors
	guards   guards
}

func newFilters(list []*resource.Filter) (filters, error) {
	var f filters
	for i, filter := range list {
		switch kind := filter.GetKind().(type) {
		case *resource.Filter_RequestHeaders:
			change := newHeaderChange(kind.RequestHeaders)
			f.host = cmp.Or(change.takeHost(), f.host)
			f.request = append(f.request, change)
		case *resource.Filter_ResponseHeaders:
			f.response = append(f.response, newHeaderChange(kind.ResponseHeaders))
		case *resource.Filter_Redirect:
			if err := plan.CheckRedirect(kind.Redirect); err != nil {
				return f, fmt.Errorf("filter %d: %w", i, err)
			}
			f.redirect = kind.Redirect
		case *resource.Filter_Rewrite:
			if err := checkRewrite(kind.Rewrite); err != nil {
				return f, fmt.Errorf("filter %d: %w", i, err)
			}
			f.rewrite = kind.Rewrite
		case *resource.Filter_Mirror:
			f.mirrors = append(f.mirrors, kind.Mirror)
		case *resource.Filter_Cors:
			f.cors = newCORS(kind.Cors)
		case *resource.Filter_ClientAddresses:
			list, err := access.New(kind.ClientAddresses)
			if err != nil {
				return f, fmt.Errorf("filter %d: %w", i, err)
			}
			f.guards.addresses = append(f.guards.addresses, list)
		case *resource.Filter_BodyLimit:
			f.guards.limitBody(kind.BodyLimit.GetBytes())
		default:
			// A filter that is not carried out could have been one that protects.
			return f, fmt.Errorf("filter %d is of a kind that this proxy does not know", i)
		}
	}
	return f, nil
}

// headerChange has canonical names.
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

// takeHost takes the value for Host out of a change. One that is set goes before one that is
// added.
func (c *headerChange) takeHost() string {
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

func checkRewrite(rewrite *resource.Rewrite) error {
	if rewrite.GetPath().GetExpression() != nil {
		return errors.New("a change of the path by an expression is not carried out yet")
	}
	return plan.CheckPathChange(rewrite.GetPath())
}

// rewriteTarget changes the target of a request.
func rewriteTarget(rewrite *resource.Rewrite, prefix string, out *http.Request) {
	if rewrite.GetHostname() != "" {
		out.Host = rewrite.GetHostname()
	}
	out.URL.Path, out.URL.RawPath = plan.ChangePath(rewrite.GetPath(), prefix, out.URL)
}
