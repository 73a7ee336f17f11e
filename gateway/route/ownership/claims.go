// SPDX-License-Identifier: Apache-2.0

package ownership

// Claims contains the host names of routes of one kind at a listener. A lookup takes one map access per
// label.
type Claims[T any] struct {
	// at maps a name to its oldest claim, and under a wildcard to the oldest claim of a name below it.
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

// Add adds the host names of a route. Routes must be added in ascending order of age; the oldest route has
// the smallest age.
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

// Oldest returns the oldest route with a host name that intersects one of hosts, and the intersection.
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
