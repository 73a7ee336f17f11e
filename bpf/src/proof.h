/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>

#include "types.h"

/* SYNs and ACKs can be spoofed. So a TCP flow is established only once the client has proved,
 * by the endpoint's sequence numbers, that it gets what the endpoint sends:
 *
 *   ASKED    A SYN came. Only a SYN-ACK or a reset answers it.
 *   RENEWED  A SYN came after a flow of the same client port that is over. The endpoint may
 *            still know that one, as in TIME-WAIT, and answer with an ACK. The client must get
 *            it, to reset the old flow before its next SYN (RFC 9293 section 3.10.7.4).
 *   OFFERED  The SYN-ACK left, with the endpoint's initial sequence number. The client has to
 *            acknowledge it.
 *   CLAIMED  A midstream packet came of a connection that this node does not know. What it
 *            acknowledges has to be near the endpoint's sequence numbers.
 *   GIVEN    The client acknowledged it, or the endpoint was there.
 *
 * Until then a reply that does not fit is not rewritten. It belongs to a connection with the
 * endpoint itself, from the same client address and port: spoofed packets must not capture
 * the replies of such a connection.
 *
 * UDP has no such numbers. An answer of the endpoint is the only proof, hence a table of its
 * own.
 *
 * A guessed number is accepted once in 2^16 (OFFERED) or 2^10 (CLAIMED) packets.
 */
#define HANDSHAKE_WINDOW (1 << 16)
/* How far the endpoint may be ahead of what the client has acknowledged (segments in flight),
 * and how far behind (retransmissions).
 */
#define CLAIM_AHEAD (1 << 22)
#define CLAIM_BEHIND (1 << 16)
/* How far a reset may be ahead of what the endpoint has acknowledged. */
#define RESET_WINDOW (1 << 16)

static __always_inline int is_opening(const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Reports whether the packet belongs to an earlier TCP connection or SCTP association. Of UDP
 * any packet may begin a flow.
 */
static __always_inline int is_midstream(const struct packet *packet)
{
	return packet->flow.protocol != IPPROTO_UDP && !is_opening(packet);
}

/* Of a TCP header, in host byte order. */
struct tcp_numbers {
	__u32 sequence;
	__u32 acknowledged;
};

/* Reports whether number is in the window that begins at base. */
static __always_inline int within(__u32 number, __u32 base, __u32 window)
{
	return number - base < window;
}

/* The proof after a reply of the endpoint, or -1 where the reply does not belong to the flow. */
static __always_inline int proof_by_reply(const struct reverse *reverse, __u8 tcp_flags,
					  __u32 sequence)
{
	switch (reverse->proof) {
	case PROOF_ASKED:
		if ((tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
			return PROOF_OFFERED;
		return tcp_flags & TCP_RST ? PROOF_ASKED : -1;
	case PROOF_RENEWED:
		if ((tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
			return PROOF_OFFERED;
		return PROOF_RENEWED;
	case PROOF_CLAIMED:
		if (!within(sequence, reverse->sequence - CLAIM_BEHIND, CLAIM_BEHIND + CLAIM_AHEAD))
			return -1;
		return tcp_flags & TCP_RST ? PROOF_CLAIMED : PROOF_GIVEN;
	default:
		return reverse->proof;
	}
}

/* The proof after a packet of the client other than a SYN. */
static __always_inline int proof_by_client(const struct reverse *reverse, __u32 acknowledged)
{
	switch (reverse->proof) {
	case PROOF_ASKED:
	case PROOF_RENEWED:
		/* The SYN-ACK was not seen here: the state was lost in between. */
		return PROOF_CLAIMED;
	case PROOF_OFFERED:
		if (within(acknowledged, reverse->sequence + 1, HANDSHAKE_WINDOW))
			return PROOF_GIVEN;
		return PROOF_OFFERED;
	default:
		return reverse->proof;
	}
}
