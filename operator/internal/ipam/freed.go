// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// addressRuns maps used addresses to a later address of the same run (union-find with shortened paths).
// Addresses are never removed.
type addressRuns map[netip.Addr]netip.Addr

func (r addressRuns) add(address netip.Addr) {
	if _, known := r[address]; !known {
		r[address] = address.Next()
	}
}

// nextUnused returns the first unused address at or after an address, invalid past the family's end.
func (r addressRuns) nextUnused(address netip.Addr) netip.Addr {
	end := address
	for next, known := r[end]; known; next, known = r[end] {
		end = next
	}
	for next, known := r[address]; known; next, known = r[address] {
		r[address], address = end, next
	}
	return end
}

// freedAddresses are previously used, free addresses in the order of their release, by block.
type freedAddresses struct {
	order   map[netip.Addr]uint64
	retired uint64
	all     freedQueue
	blocks  map[netip.Prefix]*freedBlock
}

// A freedQueue is in the order of release and may contain stale entries: used again, or freed later.
type freedQueue []freedAddress

type freedBlock struct {
	queue freedQueue
	count int
}

type freedAddress struct {
	netip.Addr
	order uint64
}

const blockBits = 8

func newFreedAddresses() freedAddresses {
	return freedAddresses{order: map[netip.Addr]uint64{}, blocks: map[netip.Prefix]*freedBlock{}}
}

func (f *freedAddresses) len() int { return len(f.order) }

func blockOf(address netip.Addr) netip.Prefix {
	return netip.PrefixFrom(address, address.BitLen()-blockBits).Masked()
}

func (f *freedAddresses) add(address netip.Addr) {
	f.remove(address)
	f.retired++
	f.order[address] = f.retired
	key := blockOf(address)
	block := f.blocks[key]
	if block == nil {
		block = &freedBlock{}
		f.blocks[key] = block
	}
	block.count++
	f.push(&block.queue, address, block.count)
	f.push(&f.all, address, len(f.order))
}

// push appends the last freed address and compacts the queue, of count valid entries, if stale ones
// prevail.
func (f *freedAddresses) push(queue *freedQueue, address netip.Addr, count int) {
	*queue = append(*queue, freedAddress{address, f.retired})
	if len(*queue) > 2*count+1<<blockBits {
		*queue = slices.DeleteFunc(*queue, f.isOver)
	}
}

func (f *freedAddresses) head(queue *freedQueue) (freedAddress, bool) {
	for len(*queue) > 0 && f.isOver((*queue)[0]) {
		*queue = (*queue)[1:]
	}
	if len(*queue) == 0 {
		return freedAddress{}, false
	}
	return (*queue)[0], true
}

func (f *freedAddresses) isOver(freed freedAddress) bool { return f.order[freed.Addr] != freed.order }

func (f *freedAddresses) remove(address netip.Addr) {
	if _, known := f.order[address]; !known {
		return
	}
	delete(f.order, address)
	key := blockOf(address)
	if block := f.blocks[key]; block.count > 1 {
		block.count--
	} else {
		delete(f.blocks, key)
	}
}

func (f *freedAddresses) forget(left int) {
	longest := slices.SortedFunc(maps.Keys(f.order), func(a, b netip.Addr) int { return cmp.Compare(f.order[a], f.order[b]) })
	for _, address := range longest[:len(longest)-left] {
		f.remove(address)
	}
}

// first returns the address of a set that has been free for longest.
func (f *freedAddresses) first(addresses Addresses, family Family) (netip.Addr, bool) {
	if longest, ok := f.head(&f.all); ok && FamilyOf(longest.Addr) == family && addresses.Contains(longest.Addr) {
		return longest.Addr, true
	}
	var found freedAddress
	for key, block := range f.blocks {
		if FamilyOf(key.Addr()) != family || !addresses.overlaps(key) {
			continue
		}
		if oldest, ok := f.head(&block.queue); !ok || found.IsValid() && oldest.order > found.order {
			continue
		}
		for _, freed := range block.queue {
			if found.IsValid() && freed.order > found.order {
				break
			}
			if !f.isOver(freed) && addresses.Contains(freed.Addr) {
				found = freed
				break
			}
		}
	}
	return found.Addr, found.IsValid()
}
