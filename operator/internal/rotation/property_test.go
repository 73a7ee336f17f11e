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

type member struct {
	// does is the ring of its data plane, which outlives the agent; keys are its secrets.
	does tunnelkey.Ring
	// seen is the last version read; versions are read in order, with gaps.
	seen     int
	reported tunnelkey.Ring
	// tags is false while an agent without support for tags runs.
	tags bool
}

type cluster struct {
	members []*member
	secret  *tunnelkey.State
	// versions are those of the Secret, oldest first; nil after a deletion.
	versions []*tunnelkey.State
	now      time.Time
	losses   int
}

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
		nodes = append(nodes, Node{Name: fmt.Sprintf("node%d", i), Ring: m.reported})
	}
	return nodes
}

func (c *cluster) recovers() bool {
	if len(c.versions) == 0 {
		return false
	}
	last := c.versions[len(c.versions)-1]
	return last.Required && (last.Sending == 0 || c.secret == nil)
}

func (c *cluster) required() bool {
	return slices.ContainsFunc(c.versions, func(state *tunnelkey.State) bool { return state.Required })
}

func (c *cluster) reported() bool {
	return !c.required() || slices.ContainsFunc(c.members, func(m *member) bool { return m.reported.Required })
}

func (c *cluster) advance() {
	for range 8 {
		c.operator(false)
		c.now = c.now.Add(MinPhase)
		for _, m := range c.members {
			m.tags = true
			m.read(c.versions, len(c.versions)-1)
			m.reported = m.does
		}
	}
}

// operator never proceeds without a node here.
func (c *cluster) operator(isRequested bool) {
	if c.secret == nil {
		c.store(First(c.nodes(), propertySeed, c.now))
		return
	}
	rotationSettings := Settings{Lifetime: settings.Lifetime, NodeTimeout: 1e6 * time.Hour}
	if step := Next(c.secret, c.nodes(), rotationSettings, isRequested, c.now); !step.Next.Equal(c.secret) {
		c.store(step.Next)
	}
}

func (m *member) read(versions []*tunnelkey.State, version int) {
	if m.tags && version >= m.seen && versions[version] != nil {
		m.does = tunnelkey.Adopt(m.does, versions[version])
	}
	m.seen = max(m.seen, version)
}

// check verifies the property: every node accepts the packets of every other one.
func (c *cluster) check(t *rapid.T) {
	for i, from := range c.members {
		for j, to := range c.members {
			if !to.does.Takes(from.does.Sending) {
				t.Fatalf("node%d sends with %+v, but node%d accepts %+v", i, from.does, j, to.does)
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
			c.advance()
		}
		someone := func(t *rapid.T) *member { return rapid.SampledFrom(c.members).Draw(t, "node") }
		t.Repeat(map[string]func(*rapid.T){
			"":         c.check,
			"operator": func(*rapid.T) { c.operator(false) },
			"asked":    func(*rapid.T) { c.operator(true) },
			"time":     func(*rapid.T) { c.now = c.now.Add(MinPhase) },
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
			"upgrade": func(t *rapid.T) { someone(t).tags = true },
			// A new node must wait for the newest version of the Secret if it lacks the key that others
			// send with.
			"join": func(t *rapid.T) {
				if len(c.members) < 6 && !c.recovers() {
					// A node without tags cannot join once they are required.
					m := &member{tags: c.required() || rapid.Bool().Draw(t, "tags")}
					if len(c.versions) > 0 {
						m.read(c.versions, len(c.versions)-1)
					}
					c.members = append(c.members, m)
				}
			},
			"leave": func(*rapid.T) {
				// After a loss of the Secret only reports have its content.
				if len(c.members) > 1 && (c.secret != nil || len(c.versions) == 0) {
					c.members = c.members[1:]
				}
			},
			// The Secret is deleted once, at a time when reports show whether tags are required.
			"lose": func(*rapid.T) {
				if c.secret != nil && c.losses < 1 && c.reported() {
					c.losses++
					c.secret = nil
				}
			},
		})
	})
}

// Every rotation completes in any order of steps, and tags are required then.
func TestEveryChangeTerminates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &cluster{now: start}
		for range rapid.IntRange(1, 5).Draw(t, "nodes") {
			c.members = append(c.members, &member{tags: true})
		}
		for round := range uint32(3) {
			c.operator(true)
			for range 8 {
				c.now = c.now.Add(MinPhase)
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
					t.Fatalf("round %d: node%d has %+v, want %+v", round, i, m.does, want)
				}
			}
			if c.secret.Phase != tunnelkey.Steady {
				t.Fatalf("round %d: Secret = %+v", round, c.secret)
			}
		}
	})
}
