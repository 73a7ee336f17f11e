/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "count.h"
#include "hash.h"
#include "maps.h"
#include "row.h"
#include "trace.h"

/* Per-VIP quota on new entries in the tables that untrusted hosts can fill. Established connections
 * are included because a compromised pod can establish them from any address. New entries of a VIP
 * over its quota go to an overflow table of the same size, so that they do not evict entries of
 * other VIPs. Overflow tables are read only while they have entries, of the packet's VIP or, for
 * replies, of any. VIPs share slots by a keyed hash.
 */

/* New entries per second, set by the loader, below the rate at which live entries are evicted. */
volatile const __u32 half_open_quota = 64;
volatile const __u32 connection_quota = 256;
volatile const __u32 datagram_quota = 16;
volatile const __u32 fragment_quota = FRAGMENTED_DATAGRAMS / 64;

/* Seconds that a VIP stays over its quota after it last exceeded it. */
#define OVER_QUOTA_SECONDS 60

/* Seconds that an overflow table is read after its last use; at least the flows' idle timeout. */
#define OVERFLOW_SECONDS 240
#define OVERFLOW_CONNECTION_SECONDS 7500

static __always_inline __u32 quota_of_kind(enum quota_kind kind)
{
	if (kind == QUOTA_HALF_OPEN)
		return half_open_quota;
	if (kind == QUOTA_CONNECTIONS)
		return connection_quota;
	return kind == QUOTA_DATAGRAMS ? datagram_quota : fragment_quota;
}

/* Slot 0 is the last use by any VIP. */
static __always_inline struct quota *quota_at(__u32 slot, enum quota_kind kind)
{
	struct quotas *quotas = bpf_map_lookup_elem(&vip_quotas, &slot);

	return quotas ? &quotas->kind[kind] : NULL;
}

static __always_inline struct quota *quota_of(const struct address *vip, enum quota_kind kind)
{
	return quota_at(1 + hash_slot(hash_vip(vip->word), QUOTA_SLOTS - 1), kind);
}

static __always_inline int overflow_is_used(const struct quota *quota, enum quota_kind kind)
{
	__u32 seconds = kind == QUOTA_CONNECTIONS ? OVERFLOW_CONNECTION_SECONDS : OVERFLOW_SECONDS;

	return quota && quota->used && !clock_passed(quota->used, seconds);
}

/* Reports whether the overflow table may have entries of the VIP. */
static __always_inline int vip_overflows(const struct address *vip, enum quota_kind kind)
{
	return overflow_is_used(quota_of(vip, kind), kind);
}

/* Reports whether the overflow table may have entries of any VIP. */
static __always_inline int any_overflows(enum quota_kind kind)
{
	return overflow_is_used(quota_at(0, kind), kind);
}

static __always_inline void quota_stamp(__u32 *stamp)
{
	__u32 now = stamp_now();

	/* Avoids cache line contention in a flood. */
	if (*stamp != now)
		*stamp = now;
}

/* Records a use of the overflow table. */
static __always_inline void overflow_use(const struct address *vip, enum quota_kind kind)
{
	struct quota *quota = quota_of(vip, kind), *all = quota_at(0, kind);

	if (!quota || !all || tracing)
		return;
	quota_stamp(&quota->used);
	quota_stamp(&all->used);
}

/* Charges a new entry to the VIP. Reports whether it goes to the overflow table. */
__noinline int quota_take(const struct address *vip, int kind)
{
	struct quota *quota;
	__u32 most;

	if (!vip || kind < 0 || kind >= QUOTA_KINDS)
		return 0;
	most = quota_of_kind(kind);
	quota = quota_of(vip, kind);
	if (!quota || tracing)
		return 0;
	if (clock_passed(quota->since, 1)) {
		quota->since = clock_now();
		quota->count = 0;
	}
	if (quota->count < most)
		__sync_fetch_and_add(&quota->count, 1);
	else
		quota_stamp(&quota->exceeded);
	if (!quota->exceeded)
		return 0;
	if (clock_passed(quota->exceeded, OVER_QUOTA_SECONDS)) {
		/* Clear the timestamp before the clock wraps. */
		quota->exceeded = 0;
		return 0;
	}
	overflow_use(vip, kind);
	count_event(EVENT_OVER_QUOTA);
	return 1;
}

/* Refunds an entry whose flow is validated, unless another CPU interferes. */
static __always_inline void quota_return(const struct address *vip, enum quota_kind kind)
{
	struct quota *quota = quota_of(vip, kind);
	__u32 count;

	if (!quota || tracing)
		return;
	count = quota->count;
	if (count)
		__sync_val_compare_and_swap(&quota->count, count, count - 1);
}
