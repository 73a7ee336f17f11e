/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/types.h>

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of two words, used as a MAC. */

struct siphash_state {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotate_left(__u64 word, int bits)
{
	return word << bits | word >> (64 - bits);
}

static __always_inline void siphash_round(struct siphash_state *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = rotate_left(s->v1, 13) ^ s->v0;
	s->v3 = rotate_left(s->v3, 16) ^ s->v2;
	s->v0 = rotate_left(s->v0, 32);
	s->v2 += s->v1;
	s->v0 += s->v3;
	s->v1 = rotate_left(s->v1, 17) ^ s->v2;
	s->v3 = rotate_left(s->v3, 21) ^ s->v0;
	s->v2 = rotate_left(s->v2, 32);
}

static __always_inline void siphash_word(struct siphash_state *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round(s);
	siphash_round(s);
	s->v0 ^= word;
}

/* Words are little-endian, as in the paper. */
static __always_inline __u64 siphash(const __u64 key[2], __u64 first, __u64 second)
{
	struct siphash_state s = {
		.v0 = 0x736f6d6570736575 ^ key[0],
		.v1 = 0x646f72616e646f6d ^ key[1],
		.v2 = 0x6c7967656e657261 ^ key[0],
		.v3 = 0x7465646279746573 ^ key[1],
	};

	siphash_word(&s, first);
	siphash_word(&s, second);
	/* The last byte is the length, 16. */
	siphash_word(&s, 16ull << 56);
	s.v2 ^= 0xff;
	siphash_round(&s);
	siphash_round(&s);
	siphash_round(&s);
	siphash_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
