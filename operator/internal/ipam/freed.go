// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// runs maps used addresses to a later address of the same run of consecutive addresses (union-find). Addresses
// are added but never removed. Searches shorten the paths, so that long runs are cheap.
type runs map[netip.Addr]netip.Addr

func (r runs) add(address netip.Addr) {
	if _, known := r[address]; !known {
		r[address] = address.Next()
	}
}

// behind returns the first unused address at or after an address. It is invalid if the family ends before.
func (r runs) behind(address netip.Addr) netip.Addr {
	end := address
	for next, known := r[end]; known; next, known = r[end] {
		end = next
	}
	for next, known := r[address]; known; next, known = r[address] {
		r[address], address = end, next
	}
	return end
}

// freedAddresses are free addresses that were used before, in the order in which they became free, indexed by
// block.
type freedAddresses struct {
	order map[netip.Addr]uint64
	// retired counts how often any address became free.
	retired uint64
	all     freedQueue
	blocks  map[netip.Prefix]*freedBlock
}

// A freedQueue holds addresses in the order in which they became free. It may contain entries that are stale:
// used again, or freed again later.
type freedQueue []freedAddress

// A freedBlock holds the freed addresses of one block.
type freedBlock struct {
	queue freedQueue
	count int
}

type freedAddress struct {
	netip.Addr
	order uint64
}

// blockBits is the number of host bits of a block.
const blockBits = 8

func newFreedAddresses() freedAddresses {
	return freedAddresses{order: map[netip.Addr]uint64{}, blocks: map[netip.Prefix]*freedBlock{}}
}

func (f *freedAddresses) len() int { return len(f.order) }

func blockOf(address netip.Addr) netip.Prefix {
	return netip.PrefixFrom(address, address.BitLen()-blockBits).Masked()
}

// add records that an address became free.
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

// push appends the address that became free last to a queue with count valid entries, and compacts the queue
// when stale entries prevail.
func (f *freedAddresses) push(queue *freedQueue, address netip.Addr, count int) {
	*queue = append(*queue, freedAddress{address, f.retired})
	if len(*queue) > 2*count+1<<blockBits {
		*queue = slices.DeleteFunc(*queue, f.isOver)
	}
}

// head returns the valid entry that has been free for longest, if any.
func (f *freedAddresses) head(queue *freedQueue) (freedAddress, bool) {
	for len(*queue) > 0 && f.isOver((*queue)[0]) {
		*queue = (*queue)[1:]
	}
	if len(*queue) == 0 {
		return freedAddress{}, false
	}
	return (*queue)[0], true
}

// isOver reports whether an entry is stale.
func (f *freedAddresses) isOver(freed freedAddress) bool { return f.order[freed.Addr] != freed.order }

// remove records that an address is used again.
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

// forget keeps only the addresses freed last, as many as left.
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
