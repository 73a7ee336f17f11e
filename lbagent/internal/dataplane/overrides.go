// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Prints of slots without an override (bpf/src/override_table.h).
const (
	overrideFree = iota
	overrideClaimed
	overrideGone
)

// maxNodeTables keeps a row's index within the bits reserved for it in an override.
const maxNodeTables = 1<<28/forwarding.Rows - 1

// overrideBuckets is a power of two. A full load of both families uses an eighth to a quarter of the slots:
// then one in a thousand buckets is full, and one in a million flows finds both of its buckets full.
func (c *Config) overrideBuckets() uint32 {
	return 1 << bits.Len32(uint32(c.overrides()-1))
}

func (d *Dataplane) makeOverrideSecret() error {
	var secret bpf.DatapathFingerprintSecret
	if err := d.maps.FingerprintKey.Lookup(uint32(0), &secret); err != nil {
		return fmt.Errorf("read map %s: %w", bpf.DatapathMapFingerprintKey, err)
	}
	if secret != (bpf.DatapathFingerprintSecret{}) {
		return nil
	}
	random := make([]byte, 8*len(secret.Word))
	_, _ = rand.Read(random)
	for i := range secret.Word {
		secret.Word[i] = binary.NativeEndian.Uint64(random[8*i:])
	}
	return write(d.maps.FingerprintKey, bpf.DatapathMapFingerprintKey, 0, uint32(0), secret)
}

func (c *Config) overrideWords() uint32 {
	return max(c.overrideBuckets()/uint32(bpf.DatapathShapeOVERRIDE_FILTERED), 1)
}

// Each run of a sweep's program takes less than a millisecond of a CPU.
const (
	wordsPerRun   = 1024
	settledPerRun = 65536
)

type sweepState struct {
	ended   bool
	learned uint64
	// left counts remaining overrides, marked counts rows marked because of overrides.
	left, marked uint32
}

// SweepOverrides removes expired overrides and clears their rows' flags. It returns at once if nothing
// changed.
func (d *Dataplane) SweepOverrides() error {
	learned, err := d.learned()
	if err != nil {
		return err
	}
	d.mu.Lock()
	last, moved := d.swept, d.rowsWritten
	d.rowsWritten = false
	d.mu.Unlock()
	if last.ended && !moved && last.learned == learned && last.left == 0 && last.marked == 0 {
		return nil
	}
	state, err := d.sweep(learned)
	d.mu.Lock()
	d.swept = state
	d.mu.Unlock()
	return err
}

func (d *Dataplane) sweep(learned uint64) (sweepState, error) {
	request := bpf.DatapathOverrideSweep{}
	if err := sweepAll(d.programs.SweepOverrides, &request, d.maps.OverrideFilter.MaxEntries(), wordsPerRun); err != nil {
		return sweepState{}, fmt.Errorf("sweep the overrides: %w", err)
	}
	state := sweepState{learned: learned, left: request.Left}
	request.Left = 0
	if err := sweepAll(d.programs.ClearRowFlags, &request, d.maps.Rows.MaxEntries(), settledPerRun); err != nil {
		return sweepState{}, fmt.Errorf("settle rows: %w", err)
	}
	state.marked, state.ended = request.Left, true
	return state, nil
}

func sweepAll(p *ebpf.Program, request *bpf.DatapathOverrideSweep, places, atOnce uint32) error {
	for first := uint32(0); first < places; first += atOnce {
		request.First, request.Count = first, min(atOnce, places-first)
		done, err := p.Run(&ebpf.RunOptions{Context: *request, ContextOut: request})
		if err == nil && done != request.Count {
			err = errors.New("the kernel stopped before the end")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Dataplane) learned() (uint64, error) {
	var counts []uint64
	if err := d.maps.EventCounts.Lookup(uint32(bpf.DatapathEventEVENT_OVERRIDE_ADDED), &counts); err != nil {
		return 0, fmt.Errorf("read map %s: %w", bpf.DatapathMapEventCounts, err)
	}
	var sum uint64
	for _, n := range counts {
		sum += n
	}
	return sum, nil
}

// copyOverrides copies overrides into a table of another size; an override's bucket depends on its print
// and the size. Entries of the new table are retained, and overrides of a full bucket are lost: their flows
// follow row and chain.
func copyOverrides(from, to *ebpf.Map) error {
	held, err := readBuckets(to)
	if err != nil {
		return err
	}
	keys, buckets := []uint32{}, []bpf.DatapathOverrideBucket{}
	changed := map[uint32]bool{}
	previous, err := readBuckets(from)
	if err != nil {
		return err
	}
	for i := range previous {
		for _, override := range previous[i].Slot {
			if override.Fingerprint <= overrideGone {
				continue
			}
			if place, added := addOverride(held, override); added {
				changed[place] = true
			}
		}
	}
	for place := range changed {
		keys, buckets = append(keys, place), append(buckets, held[place])
	}
	if len(keys) == 0 {
		return nil
	}
	if _, err := to.BatchUpdate(keys, buckets, nil); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// addOverride adds a new override to its first or second bucket, and returns the bucket.
func addOverride(buckets []bpf.DatapathOverrideBucket, override bpf.DatapathOverride) (place uint32, added bool) {
	mask, print := uint64(len(buckets)-1), override.Fingerprint
	places := [...]uint32{uint32(print & mask), uint32(print >> 32 & mask)}
	isIt := func(other bpf.DatapathOverride) bool { return other.Fingerprint == print }
	for _, place := range places {
		if slices.ContainsFunc(buckets[place].Slot[:], isIt) {
			return place, false
		}
	}
	for _, place := range places {
		bucket := &buckets[place]
		for slot, held := range bucket.Slot {
			if held.Fingerprint == overrideFree || held.Fingerprint == overrideGone {
				bucket.Slot[slot] = override
				return place, true
			}
		}
	}
	return 0, false
}

// openFilter sets all bits, so that the programs look into every bucket. The first sweep rebuilds the filter.
func openFilter(filter *ebpf.Map) error {
	keys, ones := make([]uint32, filter.MaxEntries()), make([]uint64, filter.MaxEntries())
	for i := range keys {
		keys[i], ones[i] = uint32(i), math.MaxUint64
	}
	if _, err := filter.BatchUpdate(keys, ones, nil); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func readBuckets(m *ebpf.Map) ([]bpf.DatapathOverrideBucket, error) {
	all := make([]bpf.DatapathOverrideBucket, m.MaxEntries())
	keys := make([]uint32, len(all))
	var cursor ebpf.MapBatchCursor
	n, err := m.BatchLookup(&cursor, keys, all, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("read: %w", err)
	}
	if n != len(all) {
		return nil, fmt.Errorf("read: %d of %d entries", n, len(all))
	}
	return all, nil
}
