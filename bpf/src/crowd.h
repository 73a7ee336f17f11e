/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <bpf/bpf_endian.h>

#include "count.h"
#include "maps.h"
#include "row.h"
#include "trace.h"

/* Each VIP has a share of the tables that strangers can fill: of half-open flows, of datagrams
 * and of fragments. A VIP that makes more new entries in a second is crowded, and its new
 * entries go to a second table of the same size. So a flood of one VIP evicts no entry of a
 * quiet one. The second tables are asked only of VIPs, and of replies only in times, that have
 * entries there.
 *
 * VIPs share slots by a hash. Neighbouring addresses have different slots.
 */

/* New entries in a second, set by the loader: a part of the table that takes longer to fill it
 * than its entries last.
 */
volatile const __u32 half_open_share = 64;
volatile const __u32 datagram_share = 16;
volatile const __u32 fragment_share = FRAGMENTED_DATAGRAMS / 64;

/* How long a VIP stays crowded after the last second beyond its share. */
#define CROWDED_SECONDS 60

/* How long the second table is asked after an entry was written there or used. No idle timeout
 * of its flows is longer.
 */
#define CROWD_ASKED_SECONDS 240

static __always_inline __u32 crowd_share(enum crowd_kind kind)
{
	if (kind == CROWD_HALF_OPEN)
		return half_open_share;
	return kind == CROWD_DATAGRAMS ? datagram_share : fragment_share;
}

/* Slot 0 is for all VIPs together: only when an entry was last used. */
static __always_inline struct crowd *crowd_at(__u32 slot, enum crowd_kind kind)
{
	struct crowds *crowds = bpf_map_lookup_elem(&vip_crowds, &slot);

	return crowds ? &crowds->kind[kind] : NULL;
}

static __always_inline struct crowd *crowd_of(const struct address *vip, enum crowd_kind kind)
{
	const __be32 *word = vip->word;
	__u32 mixed = bpf_ntohl(word[0] ^ word[1] ^ word[2] ^ word[3]) * 0x9e3779b1;

	return crowd_at(1 + (mixed >> (32 - CROWD_BITS)), kind);
}

static __always_inline int crowd_is_asked(const struct crowd *crowd)
{
	return crowd && crowd->used && !clock_passed(crowd->used, CROWD_ASKED_SECONDS);
}

/* Reports whether entries of the VIP may be in the second table. */
static __always_inline int vip_is_asked(const struct address *vip, enum crowd_kind kind)
{
	return crowd_is_asked(crowd_of(vip, kind));
}

/* Reports whether those of any VIP may be. */
static __always_inline int any_is_asked(enum crowd_kind kind)
{
	return crowd_is_asked(crowd_at(0, kind));
}

static __always_inline void crowd_stamp(__u32 *stamp)
{
	__u32 now = mark_now();

	/* So that CPUs do not contend in a flood. */
	if (*stamp != now)
		*stamp = now;
}

/* Notes that an entry of the second table is written or used. */
static __always_inline void crowd_use(const struct address *vip, enum crowd_kind kind)
{
	struct crowd *crowd = crowd_of(vip, kind), *all = crowd_at(0, kind);

	if (!crowd || !all || tracing)
		return;
	crowd_stamp(&crowd->used);
	crowd_stamp(&all->used);
}

/* Counts a new entry of the VIP. Reports whether it goes to the second table. */
__noinline int crowd_enter(const struct address *vip, int kind)
{
	struct crowd *crowd;
	__u32 share;

	if (!vip || kind < 0 || kind >= CROWD_KINDS)
		return 0;
	share = crowd_share(kind);
	crowd = crowd_of(vip, kind);
	if (!crowd || tracing)
		return 0;
	if (clock_passed(crowd->since, 1)) {
		crowd->since = clock_now();
		crowd->count = 0;
	}
	if (crowd->count < share)
		__sync_fetch_and_add(&crowd->count, 1);
	else
		crowd_stamp(&crowd->exceeded);
	if (!crowd->exceeded)
		return 0;
	if (clock_passed(crowd->exceeded, CROWDED_SECONDS)) {
		/* The clock wraps: a stamp must not become young again. */
		crowd->exceeded = 0;
		return 0;
	}
	crowd_use(vip, kind);
	count_event(EVENT_CROWDED);
	return 1;
}

/* Takes an entry off the count: its flow was proved, so it is no stranger's. The count does not get
 * below zero, for that would be the most that there can be. Where another CPU changes it at the same
 * time the entry stays counted, for the rest of the second.
 */
static __always_inline void crowd_leave(const struct address *vip, enum crowd_kind kind)
{
	struct crowd *crowd = crowd_of(vip, kind);
	__u32 count;

	if (!crowd || tracing)
		return;
	count = crowd->count;
	if (count)
		__sync_val_compare_and_swap(&crowd->count, count, count - 1);
}
