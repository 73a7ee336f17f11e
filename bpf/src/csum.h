/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/types.h>

/* Internet checksum (RFC 1071) and its incremental update (RFC 1624 equation 3). */

static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)~sum;
}

/* Adds the change of a 32-bit word to the unfolded sum. */
static __always_inline __u64 csum_change(__u64 sum, __u32 from, __u32 to)
{
	return sum + (__u32)~from + to;
}

static __always_inline __u64 csum_change16(__u64 sum, __u16 from, __u16 to)
{
	return sum + (__u16)~from + to;
}

static __always_inline void csum_apply(__u16 *field, __u64 change)
{
	*field = csum_fold((__u16) ~*field + change);
}
