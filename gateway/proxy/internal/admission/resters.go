// SPDX-License-Identifier: Apache-2.0

package admission

// resters is a heap of clients by eviction order: most idle memory first, then longest idle.
type resters []*client

func (r resters) Len() int { return len(r) }

func (r resters) Less(i, j int) bool {
	if r[i].resting != r[j].resting {
		return r[i].resting > r[j].resting
	}
	return r[i].since() < r[j].since()
}

// since returns the sequence number of the client's longest idle connection.
func (c *client) since() int64 {
	if front := c.idle.Front(); front != nil {
		return front.Value.(*Connection).since
	}
	return 0
}

func (r resters) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].place, r[j].place = i, j
}

func (r *resters) Push(x any) {
	added := x.(*client)
	added.place = len(*r)
	*r = append(*r, added)
}

func (r *resters) Pop() any {
	last := len(*r) - 1
	removed := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return removed
}
