// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

var order = []struct {
	name     string
	subjects []string
}{
	{notForUs, []string{lookupPass, datapath}},
	{besideVIP, []string{lookupPass, datapath}},
	{nextToVIP, []string{lookupPass, datapath}},
	{foreignVXLAN, []string{datapath}},
	{foreignGeneve, []string{datapath}},
	{awayOne, []string{lookupTX, parseEncapsulate, lruIPIP, bareStage1, datapath}},
	{awayMany, []string{lruIPIP, bareStage1, datapath}},
	{awaySYN, []string{bareStage1, datapath}},
	{optionsOne, []string{datapath}},
	{movedOne, []string{bareStage1, datapath}},
	{movedMany, []string{lruIPIP, bareStage1, datapath}},
	{affineOne, []string{bareStage1, datapath}},
	{affineMany, []string{lruIPIP, bareStage1, datapath}},
	{rangesOne, []string{bareStage1, datapath}},
	{rangesMany, []string{lruIPIP, bareStage1, datapath}},
	{fewOne, []string{bareStage1, datapath}},
	{fewMany, []string{lruIPIP, bareStage1, datapath}},
	{fewSYN, []string{bareStage1, datapath}},
	{besideOne, []string{bareStage1, datapath}},
	{besideMany, []string{lruIPIP, bareStage1, datapath}},
	{besideSYN, []string{bareStage1, datapath}},
	{overriddenOne, []string{bareStage1, datapath}},
	{overriddenMany, []string{lruIPIP, bareStage1, datapath}},
	{hereOne, []string{bareStage2, datapath}},
	{hereMany, []string{bareStage2, datapath}},
	{hereIdle, []string{datapath}},
	{hereSYN, []string{bareStage2, datapath}},
	{tunnelOne, []string{bareDecap, datapath}},
	{tunnelMany, []string{bareDecap, datapath}},
	{egressOther, []string{datapath}},
	{egressVXLAN, []string{datapath}},
	{egressGeneve, []string{datapath}},
	{reverseOne, []string{bareEgress, datapath}},
	{reverseMany, []string{bareEgress, datapath}},
}

// limit is the maximum ratio of two figures by family.
type limit struct {
	text       string
	name, than string
	// floor is the subject of than.
	floor  string
	limits map[string]float64
	// net compares the times less the empty program's, since the others include the cost of restoring frames.
	net bool
}

func (f figures) have(name, subject string) bool {
	return len(f[key{families[0].name, name, subject}]) > 0
}

func both(most float64) map[string]float64 {
	return map[string]float64{"IPv4": most, "IPv6": most}
}

var limits = []limit{
	{"stage 1, 1 flow / Katran, net", awayOne, awayOne, katran, both(0.65), true},
	{"stage 1, 1M flows / Katran, net", awayMany, awayMany, katran, both(0.3), true},
	{"stage 1, random SYN / Katran, net", awaySYN, awaySYN, katran, both(0.3), true},
	{"stage 1 + 2, random SYN / Katran, net", hereSYN, hereSYN, katran, both(0.65), true},
	{"stage 1, 1M flows / 1 flow", awayMany, awayOne, datapath, both(1.1), false},
	{"stage 1, random SYN / established", awaySYN, awayOne, datapath, both(1.1), false},
	{"stage 1, 1 flow / bare stage 1", awayOne, awayOne, bareStage1, map[string]float64{"IPv4": 1.25, "IPv6": 1.35}, false},
	{"stage 1, 1M flows / bare stage 1", awayMany, awayMany, bareStage1, map[string]float64{"IPv4": 1.25, "IPv6": 1.35}, false},
	{"stage 1, random SYN / bare stage 1", awaySYN, awaySYN, bareStage1, map[string]float64{"IPv4": 1.25, "IPv6": 1.35}, false},
	{"stage 1, moved row, 1 flow / bare stage 1", movedOne, movedOne, bareStage1, both(1.5), false},
	{"stage 1, beside 1M overrides, 1 flow / bare stage 1", besideOne, besideOne, bareStage1, both(1.5), false},
	{"stage 1, beside 1M overrides, 1M flows / LRU + IPIP", besideMany, besideMany, lruIPIP, both(0.7), false},
	{"decapsulation + stage 2 / stage 1 + 2, 1 flow", tunnelOne, hereOne, datapath, both(1.4), false},
	// The floors trust all packets, have no connection states, and do not count replies.
	{"stage 1 + 2, 1 flow / bare stage 2", hereOne, hereOne, bareStage2, both(1.7), false},
	// The floor adds one entry to a kernel table.
	{"stage 1 + 2, random SYN / bare stage 2", hereSYN, hereSYN, bareStage2, both(1.1), false},
	{"decapsulation + stage 2, 1 flow / bare", tunnelOne, tunnelOne, bareDecap, both(2), false},
	{"reverse at egress, 1 flow / bare", reverseOne, reverseOne, bareEgress, both(2.5), false},
	{"VXLAN of a CNI / not for us", foreignVXLAN, notForUs, datapath, both(1.1), false},
	{"Geneve of a CNI / not for us", foreignGeneve, notForUs, datapath, both(1.1), false},
	{"VXLAN of a CNI / no reply of a VIP, egress", egressVXLAN, egressOther, datapath, both(1.1), false},
	{"Geneve of a CNI / no reply of a VIP, egress", egressGeneve, egressOther, datapath, both(1.1), false},
	{"not for us / parse + hash lookup", notForUs, notForUs, lookupPass, both(1.2), false},
	{"in the network of a VIP / parse + hash lookup", besideVIP, besideVIP, lookupPass, both(1.7), false},
	// Three lookups: frontend, VIP, pool.
	{"next door to a VIP / parse + hash lookup", nextToVIP, nextToVIP, lookupPass, both(2.2), false},
}

var errLimit = errors.New("a ratio is above its limit")

func report(results figures, o options, out io.Writer) error {
	p := &printer{out: out}
	p.line("ns per packet of a thread's CPU time, fastest of %d rounds; in brackets less the empty program", o.rounds)
	p.line("")
	p.line("%-76s %16s %16s", "", "IPv4", "IPv6")
	for _, row := range order {
		for _, s := range append(row.subjects, otherObject, katran, katranFlooded) {
			if !results.have(row.name, s) {
				continue
			}
			text := row.name
			if s != datapath {
				text = "  " + s + ", same packets"
			}
			p.line("%-76s %s %s", text, cell(results, "IPv4", row.name, s), cell(results, "IPv6", row.name, s))
		}
	}
	p.line("")
	p.line("%-56s %8s %18s %8s %18s", "ratios, in brackets net: less the empty program", "limit", "IPv4", "limit", "IPv6")
	above := false
	for _, l := range limits {
		if !results.have(l.name, datapath) || !results.have(l.than, l.floor) {
			continue
		}
		line := fmt.Sprintf("%-56s", l.text)
		for _, f := range families {
			raw, net := l.ratios(results, f.name)
			mark, checked := "ok", raw
			if l.net {
				checked = net
			}
			if checked > l.limits[f.name] {
				mark, above = "FAIL", true
			}
			line += fmt.Sprintf(" %8.2f %5.2f (%4.2f) %-5s", l.limits[f.name], raw, net, mark)
		}
		p.line("%s", strings.TrimRight(line, " "))
	}
	if p.err == nil && above && o.strict {
		return errLimit
	}
	return p.err
}

func (l limit) ratios(results figures, family string) (raw, net float64) {
	a, aEmpty := results.fastest(key{family, l.name, datapath}), results.fastest(key{family, l.name, empty})
	b, bEmpty := results.fastest(key{family, l.than, l.floor}), results.fastest(key{family, l.than, empty})
	return a / b, (a - aEmpty) / (b - bEmpty)
}

func cell(results figures, family, name, subject string) string {
	if len(results[key{family, name, subject}]) == 0 {
		return ""
	}
	raw := results.fastest(key{family, name, subject})
	return fmt.Sprintf("%7.1f (%6.1f)", raw, raw-results.fastest(key{family, name, empty}))
}

type printer struct {
	out io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.out, strings.TrimRight(fmt.Sprintf(format, args...), " "))
	}
}
