// SPDX-License-Identifier: Apache-2.0

// Package canary determines whether routers use the routes of all nodes, from the results of the nodes'
// probes through the routers. It is pure.
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

// Ports is the number of UDP source ports that each node probes from.
const Ports = 64

// lossy is the minimum number of a node's unanswered ports that counts as a fault, because single probes can
// be lost without one.
const lossy = Ports / 8

// samples is the number of probes per path after which a node without any probe counts as not reached. With
// 256 nodes, the probability that this happens by chance to any node is below 10⁻⁶. While agents start, fewer
// nodes probe.
const samples = 20

// Router identifies a router of an LBPeer and one of its canaries.
type Router struct {
	Peer    string `json:"peer"`
	Address string `json:"address"`
	Canary  string `json:"canary"`
}

// Node represents the results of one node's probes through a router.
type Node struct {
	Name      string `json:"name"`
	ID        int32  `json:"id"`
	Announces bool   `json:"announces"`
	// ReachedBy is the number of other nodes whose probes through the router reach this node. If it is the
	// only node that probes, its own probes count.
	ReachedBy int `json:"reachedBy"`
	// Unanswered is the number of the node's source ports without an answer; nil if the node does not probe.
	Unanswered *int32 `json:"unanswered,omitempty"`
	// Short is true if the node answers another node's short probes but no longer those as long as the MTU.
	Short bool `json:"short,omitempty"`
}

// Verdict is the conclusion from the probes through a router.
type Verdict struct {
	Router
	// Reason is a reason of the condition PathsVerified.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	Nodes   []Node `json:"nodes"`
}

// OK reports whether the router reaches all nodes.
func (v *Verdict) OK() bool { return v.Reason == millracev1beta1.ReasonPathsVerified }

// Known returns false if there are too few probes for a verdict, or if probes cannot verify the router.
func (v *Verdict) Known() bool {
	return v.Reason != millracev1beta1.ReasonPending && v.Reason != millracev1beta1.ReasonHashIgnoresPorts
}

type observation struct {
	node   string
	status *millracev1beta1.CanaryStatus
}

// IDs returns the node ids by node name.
func IDs(nodes []millracev1beta1.LBNode) map[string]int32 {
	ids := make(map[string]int32, len(nodes))
	for i := range nodes {
		ids[nodes[i].Name] = nodes[i].Spec.ID
	}
	return ids
}

// Judge returns a verdict for each router and canary in the reports, sorted. Reports of nodes that are not
// ready are ignored.
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

type evidence struct {
	probing, announcing int
	// silent lists nodes without any answer, lossy those with at least lossy unanswered ports.
	silent, lossy []string
	// missing lists nodes that announce the canary and received no probe, undecided those whose missing
	// probes can be a coincidence, short those that answer short probes only.
	missing, undecided, short []string
	unanswered                int
	// answered is the set of nodes that answered a probe of any node. spread is true if several nodes
	// answered the probes of one node.
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
			// A node's answer to its own probe counts only if no other node probes, because it does not prove
			// that the router forwards to the node.
			if id != ids[o.node] || found.others(o.status.Unanswered) == 0 {
				reachedBy[id]++
			}
		}
		for _, id := range ParseIDs(o.status.ReachedBySmallProbes) {
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

// others returns the number of other nodes that probe; unanswered is the result of the node itself.
func (e *evidence) others(unanswered *int32) int {
	if unanswered == nil {
		return e.probing
	}
	return e.probing - 1
}

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
			e.undecided = append(e.undecided, node.Name)
		}
	}
	if node.Short {
		e.short = append(e.short, node.Name)
	}
}

// conclude returns the reason of the verdict. A reason that explains more of the observations takes
// precedence.
func (e *evidence) conclude() (reason, message string) {
	switch {
	case e.announcing == 0 || e.probing == 0:
		return millracev1beta1.ReasonPending, "no node announces the canary and has probed for long enough"
	case len(e.silent) == e.probing:
		return millracev1beta1.ReasonNoProbeReplies, "no node's probes are answered: the router filters the canary, " +
			"does not forward to the nodes, or a firewall drops UDP port 6081"
	}
	if reason, message := e.concludeMissing(); reason != "" {
		return reason, message
	}
	switch {
	case len(e.silent)+len(e.lossy) > 0:
		return millracev1beta1.ReasonPacketsLost, "probes of these nodes through the router are lost: " + list(slices.Concat(e.silent, e.lossy))
	case len(e.short) > 0:
		return millracev1beta1.ReasonLargePacketsLost, "packets as long as the MTU are lost on the way to or from these nodes: " + list(e.short)
	case len(e.undecided) > 0:
		return millracev1beta1.ReasonPending, "too few nodes have probed for long enough to verify these: " + list(e.undecided)
	}
	return millracev1beta1.ReasonPathsVerified, ""
}

func (e *evidence) concludeMissing() (reason, message string) {
	hashed := !e.spread && len(e.answered) > 1
	switch {
	case len(e.missing) == 0 || hashed && len(e.silent)+len(e.lossy) > 0:
		return "", ""
	case hashed:
		return millracev1beta1.ReasonHashIgnoresPorts, "the router sends all probes of a node to the same node, so its hash ignores ports; " +
			"not reached so far: " + list(e.missing)
	case e.lostTo():
		return millracev1beta1.ReasonPacketsLost, "packets from the router to these nodes are lost, for example because the programs are " +
			"not attached or the path is broken: " + list(e.missing)
	}
	return millracev1beta1.ReasonRouteMissing, fmt.Sprintf("the router uses the routes of %d of %d nodes: it %s; not reached: %s",
		e.announcing-len(e.missing), e.announcing, e.likelyCause(), list(e.missing))
}

func (e *evidence) likelyCause() string {
	if len(e.answered) == 1 && e.announcing > 2 {
		return "has only one path (maximum-paths, or multipath is off), or filters the others"
	}
	return "filters the others, or has fewer paths (maximum-paths)"
}

// lostTo reports whether the unanswered probes can have been forwarded to the missing nodes. If the router
// had sent these nodes nothing, other nodes would have answered all probes.
func (e *evidence) lostTo() bool {
	share := float64(len(e.missing)) / float64(e.announcing)
	return float64(e.unanswered) >= share*Ports*float64(e.probing)/4 && e.unanswered > 0
}

const listed = 5

func list(names []string) string {
	if len(names) <= listed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:listed], ", "), len(names)-listed)
}

// FormatIDs formats node ids as in an LBNodeReport, such as 1-4,7.
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

// longestIDs limits the number of ids that are parsed from a text, because agents are not trusted.
const longestIDs = 4 * Ports

// ParseIDs parses the format of FormatIDs. Invalid parts and ids beyond longestIDs are ignored.
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
