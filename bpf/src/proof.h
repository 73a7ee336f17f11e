/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>

#include "types.h"

/* Anybody can send a SYN, an ACK or both with a made-up source address. So a TCP flow
 * gets into the table of established ones only once a packet has shown that its
 * sender reads what the endpoint sends, by the endpoint's sequence numbers:
 *
 *   ASKED    a SYN came; nothing but a SYN-ACK or a reset answers it.
 *   RENEWED  a SYN came after a flow through a VIP that is over. The endpoint may still know
 *            that one, as in TIME-WAIT, and answer with an ACK, which the client has to
 *            get to reset it before its next SYN is taken (RFC 9293 section 3.10.7.4).
 *   OFFERED  the SYN-ACK left with the endpoint's initial sequence number; the client
 *            has to acknowledge it.
 *   CLAIMED  a packet came from the middle of a connection that this node did not know,
 *            or no longer; what it acknowledges has to be where the endpoint is.
 *   GIVEN    it did, or it was.
 *
 * Until then a reply that does not fit belongs to somebody else, who talks with the
 * endpoint without the VIP from the same address and port, and stays as it is: a
 * stranger's SYN or ACK does not take away the replies of such a connection.
 * UDP has nothing of the kind: an answer of the endpoint is all the proof there is,
 * which is why its flows have a table of their own.
 *
 * A guessed number is accepted once in 2^16 (OFFERED) or 2^10 (CLAIMED) packets.
 */
#define HANDSHAKE_WINDOW (1 << 16)
/* How far the endpoint may be ahead of what the client has acknowledged, which is what is
 * under way between them, and how far behind, as repeated segments are.
 */
#define CLAIM_AHEAD (1 << 22)
#define CLAIM_BEHIND (1 << 16)
/* How far a reset may be ahead of what the endpoint has acknowledged. */
#define RESET_WINDOW (1 << 16)

static __always_inline int is_opening(const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* A packet that belongs to a connection made earlier, of TCP or SCTP. UDP has no such
 * packets: whoever gets one may choose.
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

/* Whether number is at least ahead of base and less than ahead of base by window. */
static __always_inline int within(__u32 number, __u32 base, __u32 window)
{
	return number - base < window;
}

/* The proof that a reply gives, or -1 where it does not belong to the flow. */
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

/* The proof that a packet of the client gives, other than a SYN. */
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
