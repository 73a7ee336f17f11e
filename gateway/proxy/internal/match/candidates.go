// SPDX-License-Identifier: Apache-2.0

package match

// maxLinear is the maximum number of rules per path that are tried sequentially. More rules are indexed.
const maxLinear = 8

type candidates struct {
	all   []int32
	index *index
}

// index finds rules by their exact condition that the fewest others share. Lists are in order of precedence.
type index struct {
	methods    map[string][]int32
	headers    map[string]map[string][]int32
	parameters map[string]map[string][]int32
	others     []int32
}

type trait struct {
	kind        traitKind
	name, value string
}

type traitKind int

const (
	noTrait traitKind = iota
	methodTrait
	headerTrait
	parameterTrait
)

func (c *conditions) traits() []trait {
	var found []trait
	for _, header := range c.headers {
		if header.expression == nil {
			found = append(found, trait{headerTrait, header.name, header.exact})
		}
	}
	for _, parameter := range c.parameters {
		if parameter.expression == nil {
			found = append(found, trait{parameterTrait, parameter.name, parameter.exact})
		}
	}
	if c.method != "" {
		found = append(found, trait{kind: methodTrait, value: c.method})
	}
	return found
}

func (c *candidates) buildIndex(of []conditions) {
	if len(c.all) <= maxLinear {
		return
	}
	count := map[trait]int{}
	for _, rule := range c.all {
		for _, each := range of[rule].traits() {
			count[each]++
		}
	}
	c.index = &index{
		methods: map[string][]int32{}, headers: map[string]map[string][]int32{}, parameters: map[string]map[string][]int32{},
	}
	for _, rule := range c.all {
		var rarest trait
		for _, each := range of[rule].traits() {
			if rarest.kind == noTrait || count[each] < count[rarest] {
				rarest = each
			}
		}
		c.index.add(rarest, rule)
	}
}

func (x *index) add(by trait, rule int32) {
	named := x.headers
	switch by.kind {
	case noTrait:
		x.others = append(x.others, rule)
		return
	case methodTrait:
		x.methods[by.value] = append(x.methods[by.value], rule)
		return
	case parameterTrait:
		named = x.parameters
	}
	if named[by.name] == nil {
		named[by.name] = map[string][]int32{}
	}
	named[by.name][by.value] = append(named[by.name][by.value], rule)
}

func (g *Group) first(of *candidates, best int32, request *Request) int32 {
	if of == nil {
		return best
	}
	if of.index == nil {
		return g.try(of.all, best, request)
	}
	best = g.try(of.index.others, best, request)
	best = g.try(of.index.methods[request.Method], best, request)
	best = g.firstByHeader(of.index.headers, best, request)
	if len(of.index.parameters) > 0 {
		best = g.firstByParameter(of.index.parameters, best, request)
	}
	return best
}

// firstByHeader iterates over the smaller of indexed names and request headers.
func (g *Group) firstByHeader(headers map[string]map[string][]int32, best int32, request *Request) int32 {
	if len(headers) <= len(request.Header) {
		for name, values := range headers {
			if have, ok := request.header(name); ok {
				best = g.try(values[have], best, request)
			}
		}
		return best
	}
	for name := range request.Header {
		if values := headers[name]; values != nil {
			if have, ok := request.header(name); ok {
				best = g.try(values[have], best, request)
			}
		}
	}
	if values := headers[hostHeader]; values != nil && request.Header[hostHeader] == nil {
		best = g.try(values[request.Host], best, request)
	}
	return best
}

func (g *Group) firstByParameter(parameters map[string]map[string][]int32, best int32, request *Request) int32 {
	query := request.parameters()
	if len(parameters) <= len(query) {
		for name, values := range parameters {
			if have, ok := query[name]; ok {
				best = g.try(values[have[0]], best, request)
			}
		}
		return best
	}
	for name, have := range query {
		if values := parameters[name]; values != nil {
			best = g.try(values[have[0]], best, request)
		}
	}
	return best
}

// try returns the first matching rule, or best if that precedes it.
func (g *Group) try(rules []int32, best int32, request *Request) int32 {
	for _, rule := range rules {
		if rule >= best {
			break
		}
		if g.conditions[rule].matches(request) {
			return rule
		}
	}
	return best
}
