// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"net/textproto"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// conditions are a rule's conditions, except for indexed paths.
type conditions struct {
	method     string
	headers    []value
	parameters []value
	path       *expression
}

type value struct {
	name       string
	exact      string
	expression *expression
}

func compileConditions(match *resource.Match) (conditions, error) {
	c := conditions{method: match.GetMethod()}
	for _, header := range match.GetHeaders() {
		v, err := compileValue(header)
		if err != nil {
			return c, fmt.Errorf("header %s: %w", header.GetName(), err)
		}
		v.name = textproto.CanonicalMIMEHeaderKey(v.name)
		c.headers = append(c.headers, v)
	}
	for _, parameter := range match.GetQueryParameters() {
		v, err := compileValue(parameter)
		if err != nil {
			return c, fmt.Errorf("query parameter %s: %w", parameter.GetName(), err)
		}
		c.parameters = append(c.parameters, v)
	}
	return c, nil
}

func compileValue(match *resource.ValueMatch) (value, error) {
	v := value{name: match.GetName(), exact: match.GetValue()}
	if !match.GetRegularExpression() {
		return v, nil
	}
	var err error
	v.expression, err = compileAnchored(match.GetValue())
	return v, err
}

func (v *value) matches(request *Request, have string) bool {
	if v.expression != nil {
		return v.expression.matches(request, have)
	}
	return have == v.exact
}

func (c *conditions) matches(request *Request) bool {
	if c.method != "" && c.method != request.Method || !request.spend(conditionSteps) {
		return false
	}
	for i := range c.headers {
		have, ok := request.header(c.headers[i].name)
		if !ok || !c.headers[i].matches(request, have) {
			return false
		}
	}
	for i := range c.parameters {
		// The first value of a repeated parameter counts, as recommended by Gateway API.
		have, ok := request.parameters()[c.parameters[i].name]
		if !ok || !c.parameters[i].matches(request, have[0]) {
			return false
		}
	}
	return c.path == nil || c.path.matches(request, request.Path)
}

// hostHeader is the Host header in rules, which net/http stores in Request.Host.
const hostHeader = "Host"

// header returns the value of a header, joining multiple ones (RFC 9110, section 5.3).
func (r *Request) header(name string) (string, bool) {
	if name == hostHeader {
		return r.Host, true
	}
	values := r.Header[name]
	switch len(values) {
	case 0:
		return "", false
	case 1:
		return values[0], true
	default:
		list := strings.Join(values, ",")
		return list, r.spend(len(list) / bytesInStep)
	}
}
