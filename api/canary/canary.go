// SPDX-License-Identifier: Apache-2.0

// Package canary says whether routers use the routes of nodes, from what these found by probes
// through the routers. It is pure.
package canary

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Ports are from how many ports a node probes.
const Ports = 64

// lossy is of how many ports the answers of a node must lack, for some are lost without a fault.
const lossy = Ports / 8

// samples is how many probes for each path prove that one gets none: of 256 nodes one gets none by
// chance with a probability of less than 10⁻⁶ then. While agents start, fewer nodes probe.
const samples = 20

// Router is one router of an LBPeer with one of its canaries.
type Router struct {
	// Peer is the name of the LBPeer.
	Peer string `json:"peer"`
	// Address is that of the router in BGP.
	Address string `json:"address"`
	Canary  string `json:"canary"`
}

// Node is what one node has to do with a router.
type Node struct {
	Name string `json:"name"`
	ID   int32  `json:"id"`
	// Announces is true where the node announces the canary to the router.
	Announces bool `json:"announces"`
	// ReachedBy is from how many other nodes the router reaches this one; a node that is alone counts
	// itself.
	ReachedBy int `json:"reachedBy"`
	// Unanswered is how many of its own ports have no answer; nil where it does not probe.
	Unanswered *int32 `json:"unanswered,omitempty"`
	// Short is true where it answers some node's short probes, and none that are long.
	Short bool `json:"short,omitempty"`
}

// Verdict is what probes through a router prove.
type Verdict struct {
	Router
	// Reason is a reason of the condition ReachedThroughRouters.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	Nodes   []Node `json:"nodes"`
}

// OK is true where the router reaches all nodes.
func (v *Verdict) OK() bool { return v.Reason == millracev1beta1.ReasonNodesReached }

// Known is false where nothing is proved yet, or cannot be.
func (v *Verdict) Known() bool {
	return v.Reason != millracev1beta1.ReasonNothingProved && v.Reason != millracev1beta1.ReasonHashWithoutPorts
}

// observation is what a node's report says of a router.
type observation struct {
	node   string
	status *millracev1beta1.CanaryStatus
}

// IDs are the ids of nodes by name.
func IDs(nodes []millracev1beta1.LBNode) map[string]int32 {
	ids := make(map[string]int32, len(nodes))
	for i := range nodes {
		ids[nodes[i].Name] = nodes[i].Spec.ID
	}
	return ids
}

// Judge returns a verdict for each router that reports tell canaries of, sorted. ids are those of
// nodes by name. A node that is not ready, as the operator says in its report, counts for nothing.
func Judge(reports []millracev1beta1.LBNodeReport, ids map[string]int32) []Verdict {
	routers := map[Router][]observation{}
	for i := range reports {
		report := &reports[i]
		if meta.FindStatusCondition(report.Status.Conditions, millracev1beta1.ConditionNodeReady) != nil {
			continue
		}
		for j := range report.Status.Sessions {
			session := &report.Status.Sessions[j]
			if session.State != millracev1beta1.SessionEstablished {
				continue
			}
			peer, _, _ := strings.Cut(session.Peer, "/")
			for k := range session.Canaries {
				router := Router{Peer: peer, Address: session.Address, Canary: session.Canaries[k].Address}
				routers[router] = append(routers[router], observation{report.Name, &session.Canaries[k]})
			}
		}
	}
	verdicts := make([]Verdict, 0, len(routers))
	for router, observations := range routers {
		verdicts = append(verdicts, judge(router, observations, ids))
	}
	slices.SortFunc(verdicts, func(a, b Verdict) int {
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Canary, b.Canary))
	})
	return verdicts
}

// evidence is what all nodes together found of a router.
type evidence struct {
	probing, announcing int
	// silent are the nodes none of whose probes is answered, lossy those that lack answers.
	silent, lossy []string
	// missing are nodes that announce and answer nobody, unsure those of which too few others would
	// know, short those that answer no long probes.
	missing, unsure, short []string
	unanswered             int
	// answered are all that answered any node, itself too. spread is true where several answered one
	// node.
	answered map[int32]bool
	spread   bool
}

func judge(router Router, observations []observation, ids map[string]int32) Verdict {
	verdict := Verdict{Router: router}
	slices.SortFunc(observations, func(a, b observation) int { return cmp.Compare(a.node, b.node) })
	found := evidence{answered: map[int32]bool{}}
	for _, o := range observations {
		if o.status.Unanswered != nil {
			found.probing++
		}
	}
	reachedBy, short := map[int32]int{}, map[int32]bool{}
	for _, o := range observations {
		reached := ParseIDs(o.status.Reached)
		found.spread = found.spread || len(reached) > 1
		for _, id := range reached {
			found.answered[id] = true
			// What a node says of itself counts only where no other probes: it may be its last word.
			if id != ids[o.node] || found.others(o.status.Unanswered) == 0 {
				reachedBy[id]++
			}
		}
		for _, id := range ParseIDs(o.status.ReachedBySmall) {
			short[id] = true
		}
	}
	paths := maps.Clone(found.answered)
	for _, o := range observations {
		id := ids[o.node]
		if o.status.Announced {
			paths[id] = true
		}
		verdict.Nodes = append(verdict.Nodes, Node{
			Name: o.node, ID: id, Announces: o.status.Announced, ReachedBy: reachedBy[id],
			Unanswered: o.status.Unanswered, Short: short[id],
		})
	}
	for i := range verdict.Nodes {
		found.add(&verdict.Nodes[i], len(paths))
	}
	verdict.Reason, verdict.Message = found.conclude()
	return verdict
}

// others is how many nodes probe beside one with so many ports without answers.
func (e *evidence) others(unanswered *int32) int {
	if unanswered == nil {
		return e.probing
	}
	return e.probing - 1
}

// add takes a node in. The router has so many paths, as far as is known.
func (e *evidence) add(node *Node, paths int) {
	if node.Unanswered != nil {
		e.unanswered += int(*node.Unanswered)
		if *node.Unanswered >= Ports {
			e.silent = append(e.silent, node.Name)
		} else if *node.Unanswered >= lossy {
			e.lossy = append(e.lossy, node.Name)
		}
	}
	if node.Announces {
		e.announcing++
		switch {
		case node.ReachedBy > 0:
		case max(1, e.others(node.Unanswered))*Ports >= samples*paths:
			e.missing = append(e.missing, node.Name)
		default:
			e.unsure = append(e.unsure, node.Name)
		}
	}
	if node.Short {
		e.short = append(e.short, node.Name)
	}
}

// conclude returns the reason of a verdict. What explains more comes first.
func (e *evidence) conclude() (reason, message string) {
	switch {
	case e.announcing == 0 || e.probing == 0:
		return millracev1beta1.ReasonNothingProved, "no node announces the canary and has probed for long enough"
	case len(e.silent) == e.probing:
		return millracev1beta1.ReasonNothingAnswered, "no node's probes are answered: the router filters the canary, " +
			"does not forward to the nodes, or a firewall drops UDP port 6081"
	}
	if reason, message := e.concludeMissing(); reason != "" {
		return reason, message
	}
	switch {
	case len(e.silent)+len(e.lossy) > 0:
		return millracev1beta1.ReasonPacketsLost, "probes of these nodes through the router are lost: " + list(slices.Concat(e.silent, e.lossy))
	case len(e.short) > 0:
		return millracev1beta1.ReasonLongPacketsLost, "packets as long as the MTU are lost on the way to or from these nodes: " + list(e.short)
	case len(e.unsure) > 0:
		return millracev1beta1.ReasonNothingProved, "too few nodes have probed for long enough to know of these: " + list(e.unsure)
	}
	return millracev1beta1.ReasonNodesReached, ""
}

// concludeMissing returns the reason of a verdict that nodes are missing for, if they are.
func (e *evidence) concludeMissing() (reason, message string) {
	hashed := !e.spread && len(e.answered) > 1
	switch {
	case len(e.missing) == 0 || hashed && len(e.silent)+len(e.lossy) > 0:
		return "", ""
	case hashed:
		return millracev1beta1.ReasonHashWithoutPorts, "the router sends all probes of a node to one other, so its hash leaves ports out; " +
			"not reached so far: " + list(e.missing)
	case e.lostTo():
		return millracev1beta1.ReasonPacketsLost, "packets that the router sends to these nodes are lost, as where the programs are " +
			"not attached or the way is cut: " + list(e.missing)
	}
	return millracev1beta1.ReasonRouteMissing, fmt.Sprintf("the router uses the routes of %d of %d nodes: it %s; not reached: %s",
		e.announcing-len(e.missing), e.announcing, e.likely(), list(e.missing))
}

// likely says why a router uses the routes of some nodes alone, the likelier first.
func (e *evidence) likely() string {
	if len(e.answered) == 1 && e.announcing > 2 {
		return "has one path alone (maximum-paths, or multipath is off), or filters the others"
	}
	return "filters the others, or has fewer paths (maximum-paths)"
}

// lostTo reports whether so many probes lack answers that the missing nodes may have got them. Where
// the router sends them nothing, all probes are answered by others.
func (e *evidence) lostTo() bool {
	share := float64(len(e.missing)) / float64(e.announcing)
	return float64(e.unanswered) >= share*Ports*float64(e.probing)/4 && e.unanswered > 0
}

// listed is how many nodes a message names.
const listed = 5

func list(names []string) string {
	if len(names) <= listed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:listed], ", "), len(names)-listed)
}

// FormatIDs writes ids as a report has them, such as 1-4,7.
func FormatIDs(ids map[int32]bool) string {
	sorted := slices.Sorted(maps.Keys(ids))
	var texts []string
	for first := 0; first < len(sorted); {
		last := first
		for last+1 < len(sorted) && sorted[last+1] == sorted[last]+1 {
			last++
		}
		text := strconv.Itoa(int(sorted[first]))
		if last > first {
			text += "-" + strconv.Itoa(int(sorted[last]))
		}
		texts = append(texts, text)
		first = last + 1
	}
	return strings.Join(texts, ",")
}

// longestIDs bounds how many ids a text gives: an agent writes it.
const longestIDs = 4 * Ports

// ParseIDs reads what FormatIDs wrote. What is no such text, or beyond what a node can reach, is
// left out.
func ParseIDs(text string) (ids []int32) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseInt(first, 10, 32)
		if err != nil {
			continue
		}
		to, err := strconv.ParseInt(last, 10, 32)
		if err != nil {
			continue
		}
		for id := from; id <= to && len(ids) < longestIDs; id++ {
			ids = append(ids, int32(id))
		}
	}
	return ids
}
