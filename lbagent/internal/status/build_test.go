// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
)

var (
	earlier = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	later   = metav1.NewTime(time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC))
)

// good is an observation without errors.
func good() Observation {
	return Observation{
		Version:    "v1",
		Interfaces: []millracev1beta1.InterfaceStatus{{Name: "eth0", XDPMode: millracev1beta1.XDPNative}},
		Sessions: []millracev1beta1.SessionStatus{
			{Peer: "a", Address: "198.51.100.1", State: millracev1beta1.SessionEstablished, Since: &earlier},
			{Peer: "b", Address: "198.51.100.2", State: millracev1beta1.SessionEstablished, Since: &earlier},
		},
		Programmed: 2,
		Forwards:   true,
		Decisions: []announce.Decision{
			{VIP: netip.MustParseAddr("203.0.113.1"), Peers: []string{"a", "b"}},
			{VIP: netip.MustParseAddr("203.0.113.2"), Reason: "NoEndpoints", Message: "none"},
		},
	}
}

type reportStatus = millracev1beta1.LBNodeReportStatus

func build(o Observation, previous reportStatus, generation int64, now metav1.Time) reportStatus {
	return Build(o, &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Generation: generation}, Status: previous}, now)
}

func problems(count int, reason string) []model.Problem {
	var list []model.Problem
	for i := range count {
		object := model.ObjectReference{Kind: "Service", Namespace: "default", Name: fmt.Sprintf("s%d", count-i)}
		list = append(list, model.Problem{Object: object, Reason: reason, Message: "not good"})
	}
	return list
}

func TestConditions(t *testing.T) {
	type expectation struct {
		status  metav1.ConditionStatus
		reason  string
		message string
	}
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	for name, test := range map[string]struct {
		change func(*Observation)
		want   map[string]expectation
	}{
		"no problem": {func(*Observation) {}, map[string]expectation{
			"Programmed": {yes, "Programmed", ""}, "Attached": {yes, "Attached", ""},
			"BGPEstablished": {yes, "Established", ""}, "Ready": {yes, "Ready", ""},
			"HostCompatible": {yes, "HostCompatible", ""},
		}},
		"host problem": {func(o *Observation) { o.Host = []string{"no room", "no light"} }, map[string]expectation{
			"HostCompatible": {no, "HostIncompatible", "no room; no light"}, "Ready": {yes, "Ready", ""},
		}},
		"no peer": {func(o *Observation) { o.Sessions = nil }, map[string]expectation{
			"BGPEstablished": {yes, "NoPeer", "no LBPeer selects this node"}, "Ready": {yes, "Ready", ""},
		}},
		"session down": {func(o *Observation) {
			o.Sessions[1].State, o.Sessions[1].Message = millracev1beta1.SessionActive, "connection refused"
		}, map[string]expectation{
			"BGPEstablished": {no, "NotEstablished", "b (198.51.100.2): connection refused"},
			"Ready":          {no, "NotEstablished", "b (198.51.100.2): connection refused"},
		}},
		"router of a range down": {func(o *Observation) {
			o.Sessions[0].Peer, o.Sessions[1].Peer, o.Sessions[1].State = "rack/198.51.100.1", "rack/198.51.100.2", millracev1beta1.SessionActive
		}, map[string]expectation{"BGPEstablished": {yes, "Established", ""}, "Ready": {yes, "Ready", ""}}},
		"no router of a range up": {func(o *Observation) {
			o.Sessions[1].Peer, o.Sessions[1].State = "rack/198.51.100.2", millracev1beta1.SessionActive
		}, map[string]expectation{"BGPEstablished": {no, "NotEstablished", "rack/198.51.100.2 (198.51.100.2)"}}},
		"failed interface": {func(o *Observation) {
			o.Interfaces[0].XDPMode, o.Interfaces[0].Message = millracev1beta1.XDPNone, "busy"
			o.MissingPrograms = []string{"uplink eth0 lacks the programs"}
		}, map[string]expectation{
			"Attached": {no, "AttachFailed", "uplink eth0 lacks the programs; eth0: busy"},
			"Ready":    {no, "AttachFailed", "uplink eth0 lacks the programs; eth0: busy"},
		}},
		"failed optional interface": {func(o *Observation) {
			o.Interfaces[0].XDPMode, o.Interfaces[0].Message = millracev1beta1.XDPNone, "busy"
		}, map[string]expectation{"Attached": {yes, "Attached", "eth0: busy"}, "Ready": {yes, "Ready", ""}}},
		"no uplink": {func(o *Observation) { o.Interfaces = nil }, map[string]expectation{
			"Attached": {no, "NoUplink", "no interface carries a default route, the node's addresses or a network with a BGP peer, or matches --uplinks"},
		}},
		"maps cannot be written": {func(o *Observation) { o.ProgramError = errors.New("no memory") }, map[string]expectation{
			"Programmed": {no, "ProgrammingFailed", "no memory"}, "Ready": {no, "ProgrammingFailed", "no memory"},
		}},
		"map full": {func(o *Observation) { o.Problems = problems(1, "MapFull") }, map[string]expectation{
			"Programmed": {no, "MapFull", "Service default/s1: not good"},
		}},
		"no id": {func(o *Observation) { o.Problems = problems(1, "NoNodeID") }, map[string]expectation{
			"Programmed": {no, "NoNodeID", "Service default/s1: not good"},
		}},
		"many object problems": {func(o *Observation) { o.Problems = problems(7, "Unsupported") }, map[string]expectation{
			"Programmed": {yes, "Programmed", "Service default/s1: not good; Service default/s2: not good; " +
				"Service default/s3: not good; Service default/s4: not good; Service default/s5: not good; and 2 more"},
			"Ready": {yes, "Ready", ""},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			observation := good()
			test.change(&observation)
			status := build(observation, reportStatus{}, 3, earlier)
			if len(status.Conditions) != 5 {
				t.Errorf("%d conditions, want 5", len(status.Conditions))
			}
			for kind, want := range test.want {
				condition := meta.FindStatusCondition(status.Conditions, kind)
				if condition == nil {
					t.Errorf("missing condition %s", kind)
					continue
				}
				got := expectation{condition.Status, condition.Reason, condition.Message}
				if got != want || condition.ObservedGeneration != 3 {
					t.Errorf("%s = %+v at generation %d, want %+v at generation 3", kind, got, condition.ObservedGeneration, want)
				}
			}
		})
	}
}

func TestVIPs(t *testing.T) {
	observation := good()
	check := func(what string, counts millracev1beta1.VIPCounts, exceptions ...millracev1beta1.VIPException) {
		t.Helper()
		status := build(observation, reportStatus{}, 1, earlier)
		if diff := cmp.Diff(counts, status.VIPs); diff != "" {
			t.Errorf("%s: counts differ: %s", what, diff)
		}
		if diff := cmp.Diff(exceptions, status.Exceptions); diff != "" {
			t.Errorf("%s: exceptions differ: %s", what, diff)
		}
	}
	noEndpoints := millracev1beta1.WithheldCount{Reason: "NoEndpoints", Count: 1}
	check("good", millracev1beta1.VIPCounts{Programmed: 2, Announced: 1, Withheld: []millracev1beta1.WithheldCount{noEndpoints}})
	observation.Sessions[0].State = millracev1beta1.SessionIdle
	check("one session lost", millracev1beta1.VIPCounts{Programmed: 2, Announced: 1, Withheld: []millracev1beta1.WithheldCount{noEndpoints}})
	observation.Sessions[1].State = millracev1beta1.SessionIdle
	check("all sessions lost", millracev1beta1.VIPCounts{
		Programmed: 2, Withheld: []millracev1beta1.WithheldCount{noEndpoints, {Reason: "NotEstablished", Count: 1}},
	}, millracev1beta1.VIPException{
		Address: "203.0.113.1", Reason: "NotEstablished", Message: "no session is established with a, b",
	})
}

func TestXDPModes(t *testing.T) {
	observation := good()
	for _, mode := range []millracev1beta1.XDPMode{millracev1beta1.XDPGeneric, millracev1beta1.XDPNative} {
		observation.Interfaces = append(observation.Interfaces, millracev1beta1.InterfaceStatus{
			Name: fmt.Sprint("eth", len(observation.Interfaces)), XDPMode: mode,
		})
	}
	if got := build(observation, reportStatus{}, 1, earlier).XDPModes; got != "Generic,Native" {
		t.Errorf("XDPModes = %q", got)
	}
}

func TestUnchanged(t *testing.T) {
	observation := good()
	observation.Sessions[1].State, observation.Sessions[1].Message = millracev1beta1.SessionActive, "connection refused"
	first := build(observation, reportStatus{}, 1, earlier)
	if again := build(observation, first, 1, later); !equality.Semantic.DeepEqual(first, again) {
		t.Errorf("reports differ: %s", cmp.Diff(first, again))
	}
	// Another attempt of a session that is still down.
	observation.Sessions[1].State = millracev1beta1.SessionOpenSent
	if again := build(observation, first, 1, later); !equality.Semantic.DeepEqual(first, again) {
		t.Errorf("a connection attempt changed the report: %s", cmp.Diff(first, again))
	}
	observation.Sessions[1].Message = "hold timer expired"
	again := build(observation, first, 1, later)
	if again.Sessions[1].State != millracev1beta1.SessionOpenSent || again.Sessions[1].Message != "hold timer expired" {
		t.Errorf("the new message is not reported: %+v", again.Sessions[1])
	}
	for _, condition := range again.Conditions {
		if !condition.LastTransitionTime.Equal(&earlier) {
			t.Errorf("LastTransitionTime of %s changed, but its status did not", condition.Type)
		}
	}
	observation.Sessions[1].State, observation.Sessions[1].Message = millracev1beta1.SessionEstablished, ""
	again = build(observation, first, 1, later)
	if at := meta.FindStatusCondition(again.Conditions, "Ready").LastTransitionTime; !at.Equal(&later) {
		t.Errorf("LastTransitionTime of Ready = %s, want %s", at, later)
	}
}

func TestRemovalsAppliedGoes(t *testing.T) {
	o := good()
	o.Held = []removalguard.Held{{Kind: "LBPeer", Count: 3, Until: time.Date(2026, 1, 1, 0, 5, 0, 0, time.UTC)}}
	told := build(o, reportStatus{}, 1, earlier)
	condition := meta.FindStatusCondition(told.Conditions, millracev1beta1.ConditionRemovalsApplied)
	if condition == nil || condition.Status != metav1.ConditionFalse || !strings.Contains(condition.Message, "LBPeer: 3, until 2026-01-01T00:05:00Z") {
		t.Errorf("condition = %+v, want the list of held objects", condition)
	}
	if !meta.IsStatusConditionTrue(told.Conditions, millracev1beta1.ConditionReady) {
		t.Error("not Ready although only removals are held")
	}
	o.Held = nil
	if again := build(o, told, 1, earlier); meta.FindStatusCondition(again.Conditions, millracev1beta1.ConditionRemovalsApplied) != nil {
		t.Error("the condition remains although no object is held")
	}
}

// NodesReachable has the most serious reason and is absent without a reason. Ready depends on it only if the node
// is cut off.
func TestNodesReachable(t *testing.T) {
	for name, test := range map[string]struct {
		set     func(o *Observation)
		reason  string
		message string
	}{
		"unexpected uplink": {func(o *Observation) { o.UnexpectedUplink = true }, millracev1beta1.ReasonUnexpectedUplink, "tunnel_uplink"},
		"dead node":         {func(o *Observation) { o.NodeHealth.Down = []string{"b"} }, millracev1beta1.ReasonNodesDown, ": b"},
		"silent agent": {
			func(o *Observation) { o.NodeHealth.Silent = []string{"b since 2026-01-01T00:00:00Z"} }, millracev1beta1.ReasonAgentsUnresponsive, ": b since 2026",
		},
		"lossy link": {func(o *Observation) { o.NodeHealth.Lossy = true }, millracev1beta1.ReasonLossyPath, "this node's link"},
		"lossy link and dead node": {
			func(o *Observation) { o.NodeHealth.Lossy, o.NodeHealth.Down = true, []string{"b"} }, millracev1beta1.ReasonLossyPath, "do not answer at UDP port 6081 and receive no packets: b",
		},
		"large packets lost": {func(o *Observation) { o.NodeHealth.Narrow = []string{"b"} }, millracev1beta1.ReasonLargePacketsLost, "switch ports on the path: b"},
		"one of two nodes":   {func(o *Observation) { o.NodeHealth.Held = []string{"b"} }, millracev1beta1.ReasonNodeIsolated, ": b"},
		"cut off": {
			func(o *Observation) { o.NodeHealth.Held, o.NodeHealth.CutOff = []string{"b", "c"}, true }, millracev1beta1.ReasonNodeIsolated, ": b; c",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := good()
			test.set(&o)
			told := build(o, reportStatus{}, 1, earlier)
			got := meta.FindStatusCondition(told.Conditions, millracev1beta1.ConditionNodesReachable)
			if got == nil || got.Status != metav1.ConditionFalse || got.Reason != test.reason || !strings.Contains(got.Message, test.message) {
				t.Errorf("condition = %+v, want reason %s and message %q", got, test.reason, test.message)
			}
			if isReady := meta.IsStatusConditionTrue(told.Conditions, millracev1beta1.ConditionReady); isReady == o.NodeHealth.CutOff {
				t.Errorf("Ready = %t", isReady)
			}
			for _, condition := range build(good(), told, 1, earlier).Conditions {
				if condition.Type == millracev1beta1.ConditionNodesReachable {
					t.Errorf("condition = %+v, want none", condition)
				}
			}
		})
	}
}
