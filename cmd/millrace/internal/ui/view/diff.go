// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Encoded is a view as JSON, row by row.
type Encoded struct {
	head, answered                            json.RawMessage
	routers, nodes, services, pools, problems rows
}

type rows map[string]json.RawMessage

// Change is the difference between two views. Applied to the previous view it results in the new one.
type Change struct {
	// Full is true if the change is from an empty view; the page drops its rows first.
	Full     bool            `json:"full,omitempty"`
	Head     json.RawMessage `json:"head,omitempty"`
	Answered json.RawMessage `json:"answered,omitempty"`
	Routers  *RowChange      `json:"routers,omitempty"`
	Nodes    *RowChange      `json:"nodes,omitempty"`
	Services *RowChange      `json:"services,omitempty"`
	Pools    *RowChange      `json:"pools,omitempty"`
	// Problems are rows of type Cause.
	Problems *RowChange `json:"problems,omitempty"`
}

// RowChange is the difference between two lists of rows.
type RowChange struct {
	// Set are new and changed rows, Gone the IDs of deleted rows.
	Set  []json.RawMessage `json:"set,omitempty"`
	Gone []string          `json:"gone,omitempty"`
}

// Encode returns the JSON of a view.
func Encode(view *View) (*Encoded, error) {
	head, err := json.Marshal(view.Head)
	if err != nil {
		return nil, fmt.Errorf("encode the view: %w", err)
	}
	answered, err := json.Marshal(view.Answered)
	if err != nil {
		return nil, fmt.Errorf("encode the nodes that answered: %w", err)
	}
	out := &Encoded{head: head, answered: answered, routers: rows{}, nodes: rows{}, services: rows{}, pools: rows{}, problems: rows{}}
	for i := range view.Routers {
		err = out.routers.put(err, view.Routers[i].ID, &view.Routers[i])
	}
	for i := range view.Nodes {
		err = out.nodes.put(err, view.Nodes[i].ID, &view.Nodes[i])
	}
	for i := range view.Services {
		err = out.services.put(err, view.Services[i].ID, &view.Services[i])
	}
	for i := range view.Pools {
		err = out.pools.put(err, view.Pools[i].ID, &view.Pools[i])
	}
	merged := causes(view.Problems)
	for i := range merged {
		err = out.problems.put(err, merged[i].ID, &merged[i])
	}
	return out, err
}

func (r rows) put(err error, id string, row any) error {
	if err != nil {
		return err
	}
	if r[id], err = json.Marshal(row); err != nil {
		return fmt.Errorf("encode %s: %w", id, err)
	}
	return nil
}

// Changes returns the difference between two views; nil is empty.
func Changes(from, to *Encoded) Change {
	change := Change{Full: from == nil}
	if from == nil {
		from = &Encoded{}
	}
	if !bytes.Equal(from.head, to.head) {
		change.Head = to.head
	}
	if !bytes.Equal(from.answered, to.answered) {
		change.Answered = to.answered
	}
	change.Routers = from.routers.changes(to.routers)
	change.Nodes = from.nodes.changes(to.nodes)
	change.Services = from.services.changes(to.services)
	change.Pools = from.pools.changes(to.pools)
	change.Problems = from.problems.changes(to.problems)
	return change
}

// changes returns nil if all rows are equal.
func (r rows) changes(to rows) *RowChange {
	change := &RowChange{}
	for id, row := range to {
		if !bytes.Equal(r[id], row) {
			change.Set = append(change.Set, row)
		}
	}
	for id := range r {
		if _, is := to[id]; !is {
			change.Gone = append(change.Gone, id)
		}
	}
	if len(change.Set)+len(change.Gone) == 0 {
		return nil
	}
	return change
}
