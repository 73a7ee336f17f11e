/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include "clock.h"
#include "flow_timeout.h"
#include "frontend.h"
#include "hash.h"
#include "maps.h"
#include "path.h"
#include "trace.h"

/* The table of exceptions: buckets of eight slots of 16 bytes. A slot has the flow's print, 64
 * bits of a hash, in place of the flow. In front is a Bloom filter, which tells most flows that
 * are no exceptions: a word of 64 bits for four buckets, two bits for each exception. A sweep
 * (exception_sweep.h) makes it anew.
 *
 * A flow has two buckets. The second is for when the first is full: the lower slots are taken
 * first, and once the last one has been taken it is never free again. So only behind a last
 * slot that is not free has a flow to be looked for in the second bucket. When both are full,
 * the first forgets the longest unused.
 *
 * The print is NH (Black et al., "UMAC: Fast and Secure Message Authentication", 1999) over the
 * words of the flow, with a finalizer. Its secret is the node's own, because nobody else needs
 * the print. Otherwise a client could choose flows that share the print of another's exception,
 * and have that one forgotten. Two flows have one print once in 2^64, and once in 2^32 if they
 * were chosen to collide without the secret.
 *
 * Slots change by compare-and-swap: a writer claims
 * one, writes what it says, and then its print. So no CPU sees the slot of one flow with the
 * node of another.
 */
#define EXCEPTION_FREE 0
/* A writer has it. */
#define EXCEPTION_CLAIMED 1
/* A last slot whose flow was forgotten. */
#define EXCEPTION_GONE 2
#define EXCEPTION_LAST (EXCEPTION_SLOTS - 1)

/* What a slot says, from the top: the row of the flow, the lower bits of the node that holds it,
 * whether it is of datagrams, the upper bits of the node, and when it was last used.
 */
#define EXCEPTION_ROW 36
#define EXCEPTION_NODE 24
#define EXCEPTION_DATAGRAMS (1ULL << 23)
#define EXCEPTION_NODE_HIGH 21
#define EXCEPTION_SEEN ((1ULL << EXCEPTION_NODE_HIGH) - 1)
#define EXCEPTION_OF_ROW ((1ULL << EXCEPTION_ROW) - 1)
/* Ticks of a unit of time, as a power of two: the time wraps after 6 days at 1000 Hz, and a
 * sweep removes what is that old long before.
 */
#define EXCEPTION_TICKS 8

/* The number of buckets less one; a power of two less one. Set by the loader. */
volatile const __u32 exception_mask;

/* hash is a sum of products. */
static __always_inline __u64 exception_print_of(__u64 sum)
{
	__u64 print = hash_final(sum);

	return print > EXCEPTION_GONE ? print : print + EXCEPTION_GONE + 1;
}

/* Words and ports are as loaded from the packet; the lower half of ports is the client's. */

static __always_inline __u64 exception_print4(__u32 client, __u32 vip, __u32 ports, __u8 protocol)
{
	__u32 zero = 0;
	const struct exception_secret *secret = bpf_map_lookup_elem(&exception_key, &zero);

	if (!secret)
		return EXCEPTION_FREE;
	return exception_print_of((client + secret->word[0]) * (vip + secret->word[1]) +
				  (ports + secret->word[2]) * (protocol + secret->word[3]));
}

static __always_inline __u64 exception_print6(const __be32 *client, const __be32 *vip, __u32 ports,
					      __u8 protocol)
{
	__u32 zero = 0;
	const struct exception_secret *secret = bpf_map_lookup_elem(&exception_key, &zero);
	const __u64 *key;

	if (!secret)
		return EXCEPTION_FREE;
	key = secret->word;
	return exception_print_of((client[0] + key[4]) * (client[1] + key[5]) +
				  (client[2] + key[6]) * (client[3] + key[7]) +
				  (vip[0] + key[8]) * (vip[1] + key[9]) +
				  (vip[2] + key[10]) * (vip[3] + key[11]) +
				  (ports + key[2]) * (protocol + key[3]));
}

static __always_inline __u64 exception_print(const struct flow *flow)
{
	__u32 ports = two_ports(flow->client_port, flow->vip_port);

	if (flow->family == ADDRESS_FAMILY_IPV4)
		return exception_print4(flow->client.word[3], flow->vip.word[3], ports,
					flow->protocol);
	return exception_print6(flow->client.word, flow->vip.word, ports, flow->protocol);
}

static __always_inline struct exception_bucket *exception_first(__u64 print)
{
	__u32 place = print & exception_mask;

	return bpf_map_lookup_elem(&exceptions, &place);
}

static __always_inline struct exception_bucket *exception_second(__u64 print)
{
	__u32 place = print >> 32 & exception_mask;

	return bpf_map_lookup_elem(&exceptions, &place);
}

static __always_inline __u64 *exception_in(struct exception_bucket *bucket, __u64 print)
{
#pragma unroll
	for (int i = 0; i < EXCEPTION_SLOTS; i++) {
		if (bucket->slot[i].print == print)
			return &bucket->slot[i].about;
	}
	return NULL;
}

static __always_inline __u64 *exception_filter_word(__u64 print)
{
	__u32 word = (print & exception_mask) / EXCEPTION_FILTERED;

	return bpf_map_lookup_elem(&exception_filter, &word);
}

static __always_inline __u64 exception_filter_bits(__u64 print)
{
	return 1ULL << (print >> 58) | 1ULL << (print >> 52 & 63);
}

/* What the table says of the flow, or NULL. */
static __always_inline __u64 *exception_find(__u64 print)
{
	__u64 bits = exception_filter_bits(print), *word = exception_filter_word(print), *found;
	struct exception_bucket *bucket;

	if (!word || (*word & bits) != bits || print <= EXCEPTION_GONE)
		return NULL;
	bucket = exception_first(print);
	if (!bucket)
		return NULL;
	found = exception_in(bucket, print);
	if (found || bucket->slot[EXCEPTION_LAST].print == EXCEPTION_FREE)
		return found;
	bucket = exception_second(print);
	return bucket ? exception_in(bucket, print) : NULL;
}

static __always_inline __u64 exception_now(void)
{
	return bpf_jiffies64() >> EXCEPTION_TICKS & EXCEPTION_SEEN;
}

static __always_inline __u64 exception_about(__u32 row, __u32 node, __u8 protocol)
{
	return (__u64)row << EXCEPTION_ROW | (node & NODE_ID_LOW) << EXCEPTION_NODE |
	       (__u64)(node >> NODE_ID_LOW_BITS) << EXCEPTION_NODE_HIGH | exception_now() |
	       (protocol == IPPROTO_TCP ? 0 : EXCEPTION_DATAGRAMS);
}

static __always_inline __u32 exception_node(__u64 about)
{
	return (about >> EXCEPTION_NODE & NODE_ID_LOW) |
	       (about >> EXCEPTION_NODE_HIGH & NODE_ID_HIGH) << NODE_ID_LOW_BITS;
}

static __always_inline int exception_unused_for(__u64 about, __u32 seconds)
{
	__u64 units = (exception_now() - about) & EXCEPTION_SEEN;

	return units >= (__u64)seconds * ticks_per_second >> EXCEPTION_TICKS;
}

static __always_inline int exception_expired(__u64 about)
{
	return exception_unused_for(about,
				    idle_seconds(about & EXCEPTION_DATAGRAMS ? FLOW_DATAGRAMS :
									       FLOW_ESTABLISHED));
}

/* Notes that the exception is in use, by the row with the index: its table may have moved. slot may
 * have become another flow's meanwhile.
 */
static __always_inline void exception_renew(__u64 *slot, __u64 about, __u32 row)
{
	__u64 renewed = (about & EXCEPTION_OF_ROW & ~EXCEPTION_SEEN) | (__u64)row << EXCEPTION_ROW |
			exception_now();

	if (!tracing &&
	    (about >> EXCEPTION_ROW != row || exception_unused_for(about, REFRESH_SECONDS)))
		__sync_val_compare_and_swap(slot, about, renewed);
}

/* Frees the slot if it still has the print. */
static __always_inline void exception_clear(struct exception_bucket *bucket, int slot, __u64 print)
{
	__sync_val_compare_and_swap(&bucket->slot[slot].print, print,
				    slot == EXCEPTION_LAST ? EXCEPTION_GONE : EXCEPTION_FREE);
}

/* Verified on its own, like exception_put. */
__noinline int exception_forget(__u64 print)
{
	if (print <= EXCEPTION_GONE || tracing)
		return 0;
	for (int i = 0; i < 2; i++) {
		struct exception_bucket *bucket =
			i ? exception_second(print) : exception_first(print);

		/* Two CPUs may have learned it at once. */
		for (int slot = 0; bucket && slot < EXCEPTION_SLOTS; slot++)
			if (bucket->slot[slot].print == print)
				exception_clear(bucket, slot, print);
	}
	return 0;
}

/* The lowest slot that is to be had, or EXCEPTION_SLOTS. */
static __always_inline __u32 exception_free_slot(const struct exception_bucket *bucket)
{
	__u32 slot = 0;

	for (; slot < EXCEPTION_SLOTS; slot++)
		if (bucket->slot[slot].print == EXCEPTION_FREE ||
		    bucket->slot[slot].print == EXCEPTION_GONE)
			break;
	return slot;
}

/* The slot of a full bucket that was longest unused. */
static __always_inline __u32 exception_victim(const struct exception_bucket *bucket)
{
	__u64 oldest = 0, now = exception_now();
	__u32 victim = 0;

	for (int i = 0; i < EXCEPTION_SLOTS; i++) {
		__u64 age = (now - bucket->slot[i].about) & EXCEPTION_SEEN;

		if (bucket->slot[i].print != EXCEPTION_CLAIMED && age >= oldest) {
			oldest = age;
			victim = i;
		}
	}
	return victim;
}

/* Puts an exception into the slot, if no other CPU wants it. Zero on success. */
static __always_inline int exception_fill(struct exception_bucket *bucket, __u32 slot, __u64 print,
					  __u64 about)
{
	__u64 old, *word = exception_filter_word(print);

	slot &= EXCEPTION_SLOTS - 1;
	old = bucket->slot[slot].print;
	if (!word || old == EXCEPTION_CLAIMED ||
	    __sync_val_compare_and_swap(&bucket->slot[slot].print, old, EXCEPTION_CLAIMED) != old)
		return -1;
	bucket->slot[slot].about = about;
	/* An exchange is a barrier, too: a sweep that misses the bits sees the print. */
	__sync_lock_test_and_set(&bucket->slot[slot].print, print);
	__sync_fetch_and_or(word, exception_filter_bits(print));
	return 0;
}

/* How often slots are tried for that other CPUs want, too. */
#define EXCEPTION_ATTEMPTS 4

/* Writes an exception. Zero, or -1 where other CPUs took each slot. */
__noinline int exception_put(__u64 print, __u64 about)
{
	struct exception_bucket *first = exception_first(print);
	struct exception_bucket *second = exception_second(print);
	__u64 *found = exception_find(print);

	if (!first || !second || print <= EXCEPTION_GONE || tracing)
		return -1;
	if (found) {
		*found = about;
		return 0;
	}
	for (int attempt = 0; attempt < EXCEPTION_ATTEMPTS; attempt++) {
		struct exception_bucket *bucket = first;
		__u32 slot = exception_free_slot(bucket);

		if (slot == EXCEPTION_SLOTS) {
			bucket = second;
			slot = exception_free_slot(bucket);
		}
		if (slot == EXCEPTION_SLOTS) {
			bucket = first;
			slot = exception_victim(bucket);
		}
		if (!exception_fill(bucket, slot, print, about))
			return 0;
	}
	return -1;
}
