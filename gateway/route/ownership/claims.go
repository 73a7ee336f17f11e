// SPDX-License-Identifier: Apache-2.0

package ownership

// Claims are host names of routes of one kind at a listener. Lookups cost one map access for each label.
type Claims[T any] struct {
	// at maps a name to its oldest claim, under maps a wildcard to the oldest claim below it.
	at, under map[Host]claim[T]
}

type claim[T any] struct {
	route T
	age   int
	host  Host
}

// NewClaims returns empty claims.
func NewClaims[T any]() *Claims[T] {
	return &Claims[T]{at: map[Host]claim[T]{}, under: map[Host]claim[T]{}}
}

// Add adds the host names of a route. Routes must be added in order of age, the oldest (smallest) first.
func (c *Claims[T]) Add(route T, age int, hosts []Host) {
	for _, host := range hosts {
		mine := claim[T]{route, age, host}
		if _, known := c.at[host]; !known {
			c.at[host] = mine
		}
		for wider := host; wider != ""; {
			wider = wider.Wider()
			if _, known := c.under[wider]; !known {
				c.under[wider] = mine
			}
		}
	}
}

// Oldest returns the oldest route with a host that intersects one of the names, and the intersection.
func (c *Claims[T]) Oldest(hosts []Host) (route T, common Host, known bool) {
	age := 0
	for _, host := range hosts {
		look := func(in map[Host]claim[T], name Host) {
			other, has := in[name]
			if has && (!known || other.age < age) {
				both, _ := Intersect(host, other.host)
				route, age, common, known = other.route, other.age, both, true
			}
		}
		for wider := host; ; wider = wider.Wider() {
			look(c.at, wider)
			if wider == "" {
				break
			}
		}
		if host == "" || host.IsWildcard() {
			look(c.under, host)
		}
	}
	return route, common, known
}
