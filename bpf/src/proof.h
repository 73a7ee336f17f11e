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
 *   CONTESTED
 *            OFFERED to the flow of another frontend, before a SYN of the same client port came
 *            through this one. The endpoint may answer as under RENEWED. Whichever of the flows
 *            acknowledges the number has the connection.
 *   CLAIMED  A midstream packet came of a connection that this node does not know. Both its
 *            numbers have to be near the endpoint's.
 *   GIVEN    The client acknowledged it, or the endpoint was there.
 *
 * Until then a reply that does not fit is not rewritten. It belongs to a connection with the
 * endpoint itself, from the same client address and port: spoofed packets must not capture
 * the replies of such a connection.
 *
 * UDP has no such numbers. An answer of the endpoint is the only proof, hence a table of its
 * own.
 *
 * A guess is accepted once in 2^16 (OFFERED) or 2^19 (CLAIMED) packets. RFC 5961 section 5
 * asks for acknowledgements within the window, which most clients scale to 2^16 bytes or more:
 * once in 2^16. A window is known only from its connection's SYN, which this node did not see.
 */
#define HANDSHAKE_WINDOW (1 << 16)
/* How far the endpoint may be ahead of what the client has acknowledged (segments in flight),
 * and how far behind (retransmissions).
 */
#define CLAIM_AHEAD (1 << 22)
#define CLAIM_BEHIND (1 << 16)
/* How far what the endpoint acknowledges may be from the client's packet, on both sides. */
#define CLAIM_FLIGHT (1 << 22)
/* How far a FIN may be ahead of what the endpoint has acknowledged. */
#define FIN_WINDOW (1 << 22)

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
	/* What acknowledges the whole segment, the FIN of one that has it included. */
	__u32 end;
};

/* Reports whether number is in the window that begins at base. */
static __always_inline int within(__u32 number, __u32 base, __u32 window)
{
	return number - base < window;
}

/* Reports whether a reply is of the connection that a midstream packet claims. A reset need not
 * acknowledge anything.
 */
static __always_inline int claim_fits(const struct reverse *reverse, __u8 tcp_flags,
				      const struct tcp_numbers *reply)
{
	return within(reply->sequence, reverse->sequence - CLAIM_BEHIND,
		      CLAIM_BEHIND + CLAIM_AHEAD) &&
	       (!(tcp_flags & TCP_ACK) ||
		within(reply->acknowledged, reverse->acknowledged - CLAIM_FLIGHT,
		       2 * CLAIM_FLIGHT));
}

/* The proof after a reply of the endpoint, or -1 where the reply does not belong to the flow. */
static __always_inline int proof_by_reply(const struct reverse *reverse, __u8 tcp_flags,
					  const struct tcp_numbers *reply)
{
	switch (reverse->proof) {
	case PROOF_ASKED:
		if ((tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
			return PROOF_OFFERED;
		return tcp_flags & TCP_RST ? PROOF_ASKED : -1;
	case PROOF_RENEWED:
	case PROOF_CONTESTED:
		if ((tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
			return PROOF_OFFERED;
		return reverse->proof;
	case PROOF_CLAIMED:
		if (!claim_fits(reverse, tcp_flags, reply))
			return -1;
		return tcp_flags & TCP_RST ? PROOF_CLAIMED : PROOF_GIVEN;
	default:
		return reverse->proof;
	}
}

/* Reports whether the entry has the initial sequence number of an endpoint that waits for its
 * acknowledgement.
 */
static __always_inline int has_offer(const struct reverse *reverse)
{
	return reverse->proof == PROOF_OFFERED || reverse->proof == PROOF_CONTESTED;
}

/* Reports whether a client that acknowledges this number has got the endpoint's offer. */
static __always_inline int offer_is_taken(const struct reverse *reverse, __u32 acknowledged)
{
	return within(acknowledged, reverse->sequence + 1, HANDSHAKE_WINDOW);
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
	case PROOF_CONTESTED:
		return offer_is_taken(reverse, acknowledged) ? PROOF_GIVEN : reverse->proof;
	default:
		return reverse->proof;
	}
}
