// SPDX-License-Identifier: Apache-2.0

package rotation

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
)

// member is a node of a simulated cluster.
type member struct {
	// does is what its data plane does; it outlives the agent. keys are the secrets behind it.
	does tunnelkey.Ring
	// seen is the last version of the Secret that it has read. Versions come in order, and some
	// are passed over.
	seen int
	// reported is what the operator knows of it.
	reported tunnelkey.Ring
	// tags is false while an agent without tags runs there.
	tags bool
}

// cluster has nodes that read the Secret, and report, whenever they like.
type cluster struct {
	members []*member
	secret  *tunnelkey.State
	// versions of the Secret, the oldest first; nil where it was deleted.
	versions []*tunnelkey.State
	now      time.Time
	losses   int
}

// propertySeed is in all versions of the Secret.
var propertySeed = flowhash.Seed{9}

func (c *cluster) store(state *tunnelkey.State) {
	if state.Seed != propertySeed {
		panic(fmt.Sprintf("a step changes %v to %v", propertySeed, state.Seed))
	}
	c.secret = state
	c.versions = append(c.versions, state)
}

func (c *cluster) nodes() []Node {
	var nodes []Node
	for i, m := range c.members {
		nodes = append(nodes, Node{Name: fmt.Sprintf("node%d", i), Does: m.reported})
	}
	return nodes
}

// recovers reports whether tags are required, and only the nodes have the keys for them.
func (c *cluster) recovers() bool {
	if len(c.versions) == 0 {
		return false
	}
	last := c.versions[len(c.versions)-1]
	return last.Required && (last.Sending == 0 || c.secret == nil)
}

// required reports whether a version of the Secret asked for tags.
func (c *cluster) required() bool {
	return slices.ContainsFunc(c.versions, func(state *tunnelkey.State) bool { return state.Required })
}

// reported reports whether one node has told, if tags are required anywhere, that they are.
func (c *cluster) reported() bool {
	return !c.required() || slices.ContainsFunc(c.members, func(m *member) bool { return m.reported.Required })
}

// settle has all nodes know tags, and follow until they are required.
func (c *cluster) settle() {
	for range 8 {
		c.operator(false)
		c.now = c.now.Add(Settle)
		for _, m := range c.members {
			m.tags = true
			m.read(c.versions, len(c.versions)-1)
			m.reported = m.does
		}
	}
}

// operator does a step of the operator. No node is ever left behind here.
func (c *cluster) operator(asked bool) {
	if c.secret == nil {
		c.store(First(c.nodes(), propertySeed, c.now))
		return
	}
	patience := Settings{Lifetime: settings.Lifetime, NodeTimeout: 1e6 * time.Hour}
	if step := Next(c.secret, c.nodes(), patience, asked, c.now); !step.Next.Equal(c.secret) {
		c.store(step.Next)
	}
}

// read has a node see a version of the Secret that is not older than the one it has seen.
func (m *member) read(versions []*tunnelkey.State, version int) {
	if m.tags && version >= m.seen && versions[version] != nil {
		m.does = tunnelkey.Adopt(m.does, versions[version])
	}
	m.seen = max(m.seen, version)
}

// check is the property: whatever a node sends, every other node takes.
func (c *cluster) check(t *rapid.T) {
	for i, from := range c.members {
		for j, to := range c.members {
			if !to.does.Takes(from.does.Sending) {
				t.Fatalf("node%d sends %+v, and node%d does %+v", i, from.does, j, to.does)
			}
		}
	}
}

func TestNoPacketIsRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &cluster{now: start}
		for range rapid.IntRange(1, 4).Draw(t, "nodes") {
			c.members = append(c.members, &member{tags: rapid.Bool().Draw(t, "tags")})
		}
		if rapid.Bool().Draw(t, "grown") {
			c.settle()
		}
		someone := func(t *rapid.T) *member { return rapid.SampledFrom(c.members).Draw(t, "node") }
		t.Repeat(map[string]func(*rapid.T){
			"":         c.check,
			"operator": func(*rapid.T) { c.operator(false) },
			"asked":    func(*rapid.T) { c.operator(true) },
			"time":     func(*rapid.T) { c.now = c.now.Add(Settle) },
			"read": func(t *rapid.T) {
				m := someone(t)
				if len(c.versions) > 0 {
					m.read(c.versions, rapid.IntRange(min(m.seen, len(c.versions)-1), len(c.versions)-1).Draw(t, "version"))
				}
			},
			"report": func(t *rapid.T) {
				m := someone(t)
				m.reported = m.does
			},
			// Its agent becomes one that knows tags.
			"upgrade": func(t *rapid.T) { someone(t).tags = true },
			// A new node is known before it reads the Secret, which is then the newest. Where that
			// does not have the key that the others send with, it must wait.
			"join": func(t *rapid.T) {
				if len(c.members) < 6 && !c.recovers() {
					// One without tags has no place where they are required.
					m := &member{tags: c.required() || rapid.Bool().Draw(t, "tags")}
					if len(c.versions) > 0 {
						m.read(c.versions, len(c.versions)-1)
					}
					c.members = append(c.members, m)
				}
			},
			"leave": func(*rapid.T) {
				// What a lost Secret said, only reports say.
				if len(c.members) > 1 && (c.secret != nil || len(c.versions) == 0) {
					c.members = c.members[1:]
				}
			},
			// Once: the Secret is deleted, at any moment at which reports say whether tags are
			// required.
			"lose": func(*rapid.T) {
				if c.secret != nil && c.losses < 1 && c.reported() {
					c.losses++
					c.secret = nil
				}
			},
		})
	})
}

// In whatever order, a change of keys comes to its end, and all tags are required then.
func TestEveryChangeEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &cluster{now: start}
		for range rapid.IntRange(1, 5).Draw(t, "nodes") {
			c.members = append(c.members, &member{tags: true})
		}
		for round := range uint32(3) {
			c.operator(true)
			for range 8 {
				c.now = c.now.Add(Settle)
				for _, m := range c.members {
					m.read(c.versions, len(c.versions)-1)
					m.reported = m.does
				}
				c.operator(false)
				c.check(t)
			}
			want := tunnelkey.Ring{Accepted: []uint32{round + 1}, Sending: round + 1, Required: true}
			for i, m := range c.members {
				if !m.does.Equal(want) {
					t.Fatalf("round %d: node%d does %+v, want %+v", round, i, m.does, want)
				}
			}
			if c.secret.Phase != tunnelkey.Steady {
				t.Fatalf("round %d: the Secret is %+v", round, c.secret)
			}
		}
	})
}
