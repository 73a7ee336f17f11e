// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

type key struct{ family, name, subject string }

// figures are nanoseconds per packet, at least one per round.
type figures map[key][]float64

// fastest returns the significant figure: other load and clock changes only add to a time. One processor was
// seen to be slower by 28 % for parts of a second, half of the time.
func (f figures) fastest(k key) float64 { return slices.Min(f[k]) }

// measure takes all figures in turns, so that other load affects all alike, and prints them.
func (w *world) measure(o options, out io.Writer) (err error) {
	beside, err := w.load(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, beside.close()) }()
	cases, err := w.buildAll(o, beside)
	defer func() {
		for _, c := range cases {
			err = errors.Join(err, c.close())
		}
	}()
	if err != nil {
		return err
	}
	results, err := w.measureRounds(cases, o.rounds)
	if err != nil {
		return err
	}
	return report(results, o, out)
}

func (w *world) load(o options) (beside contenders, err error) {
	if beside.floors, err = newFloors(w.Contents()); err != nil {
		return beside, err
	}
	if o.beside != "" {
		beside.other, err = w.loadOther(o.beside)
	}
	if err == nil && o.katran != "" {
		beside.katran, err = newKatran(o.katran)
	}
	if err != nil {
		return contenders{}, errors.Join(err, beside.close())
	}
	return beside, nil
}

// measureRounds fails if packets took another path than the measured one.
func (w *world) measureRounds(cases []*benchCase, rounds int) (figures, error) {
	before, err := w.losses()
	if err != nil {
		return nil, err
	}
	flows := slices.ContainsFunc(cases, (*benchCase).needsFlows)
	if err := errors.Join(w.establishAll(flows), w.makeMarks(cases)); err != nil {
		return nil, err
	}
	if err := w.fillTables(cases); err != nil {
		return nil, err
	}
	results := figures{}
	for range rounds {
		if err := w.measureRound(cases, results, flows); err != nil {
			return nil, err
		}
	}
	after, err := w.losses()
	if err != nil {
		return nil, err
	}
	if !maps.Equal(before, after) {
		return nil, fmt.Errorf("packets were dropped or took another path than the measured one; counters before %v, after %v",
			before, after)
	}
	return results, nil
}

// buildAll returns cases that the caller must close, also on failure.
func (w *world) buildAll(o options, beside contenders) ([]*benchCase, error) {
	var cases []*benchCase
	for _, f := range families {
		more, err := w.build(f, o.cases, beside)
		cases = append(cases, more...)
		if err != nil {
			return cases, err
		}
	}
	return cases, nil
}

func (w *world) establishAll(needed bool) error {
	if !needed {
		return nil
	}
	for _, f := range families {
		if err := w.establish(f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// fillTables makes each new entry evict another, as in a flood.
func (w *world) fillTables(cases []*benchCase) error {
	for _, c := range cases {
		if c.stream.flows != random {
			continue
		}
		for _, s := range c.subjects {
			if err := w.Plane.RenewLease(); err != nil {
				return err
			}
			if _, err := c.stream.pass(s.program, connections); err != nil {
				return fmt.Errorf("%s, %s: %s: fill its tables: %w", c.name, c.family.name, s.name, err)
			}
		}
	}
	return nil
}

func (w *world) measureRound(cases []*benchCase, results figures, flows bool) error {
	if flows {
		if err := w.checkFlows(); err != nil {
			return err
		}
	}
	for _, c := range cases {
		for range c.turns {
			if err := w.measureCase(c, results); err != nil {
				return fmt.Errorf("%s, %s: %w", c.name, c.family.name, err)
			}
		}
	}
	return nil
}

func (w *world) losses() (map[string]uint64, error) {
	counters, err := w.Plane.Counters()
	if err != nil {
		return nil, err
	}
	all := map[string]uint64{"passed_to_kernel": counters.Events["passed_to_kernel"]}
	for reason, n := range counters.Drops {
		if n != 0 {
			all[reason] = n
		}
	}
	return all, nil
}

func (c *benchCase) needsFlows() bool {
	return slices.Contains([]string{hereOne, hereMany, hereIdle, hereSYN, tunnelOne, tunnelMany, reverseOne, reverseMany}, c.name)
}

func (w *world) checkFlows() error {
	flows, err := w.Plane.Connections()
	if err != nil {
		return err
	}
	if want := uint64(flowCount * len(families)); flows.TCP < want {
		return fmt.Errorf("the data plane knows %d flows, want %d", flows.TCP, want)
	}
	return nil
}

func (w *world) measureCase(c *benchCase, results figures) error {
	for _, s := range c.subjects {
		if err := c.stream.aim(s.program); err != nil {
			return err
		}
		if err := w.prepare(c, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		got, err := c.stream.run(c.count)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if got.verdict != s.verdict {
			return fmt.Errorf("%s: verdict %d, want %d", s.name, got.verdict, s.verdict)
		}
		if err := s.check(c.stream.frame, got.frame); err != nil {
			return fmt.Errorf("%s: the frame that came out is wrong: %w", s.name, err)
		}
		k := key{c.family.name, c.name, s.name}
		results[k] = append(results[k], float64(got.cpu.Nanoseconds())/float64(c.count))
	}
	return nil
}

// prepare waits until all flows have been idle as long as the case requires. Otherwise, it warms up caches and
// branch predictors and renews the flows, including established flows beside random ones. It also renews the
// lease of the next hops, which lasts half a minute.
func (w *world) prepare(c *benchCase, s subject) error {
	if err := w.Plane.RenewLease(); err != nil {
		return err
	}
	if c.port == portMoved {
		if err := w.move(c.family); err != nil {
			return err
		}
	}
	if c.alive != nil {
		if _, err := c.alive.pass(s.program, flowCount); err != nil {
			return err
		}
	}
	if c.idle > 0 && s.name != empty {
		time.Sleep(c.idle)
		return w.Plane.RenewLease()
	}
	warm := c.count / 10
	if c.stream.flows == flowCount {
		warm = c.count
	}
	if _, err := c.stream.run(warm); err != nil {
		return err
	}
	return w.Plane.RenewLease()
}
