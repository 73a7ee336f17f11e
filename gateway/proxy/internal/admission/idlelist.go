// SPDX-License-Identifier: Apache-2.0

package admission

// idleList is a heap of clients by eviction order: most idle memory first, then longest idle.
type idleList []*client

func (r idleList) Len() int { return len(r) }

func (r idleList) Less(i, j int) bool {
	if r[i].idleBytes != r[j].idleBytes {
		return r[i].idleBytes > r[j].idleBytes
	}
	return r[i].idleSince() < r[j].idleSince()
}

func (c *client) idleSince() int64 {
	if front := c.idle.Front(); front != nil {
		return front.Value.(*Connection).idleSince
	}
	return 0
}

func (r idleList) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].heapIndex, r[j].heapIndex = i, j
}

func (r *idleList) Push(x any) {
	added := x.(*client)
	added.heapIndex = len(*r)
	*r = append(*r, added)
}

func (r *idleList) Pop() any {
	last := len(*r) - 1
	removed := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return removed
}
