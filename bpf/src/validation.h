/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>

#include "types.h"

/* Address validation. SYNs and ACKs can be spoofed, so a TCP flow is established only once the
 * client has acknowledged the endpoint's sequence numbers, i.e. receives the endpoint's packets:
 *
 * - SYN: SYN received. Only a SYN-ACK or a reset is a valid reply.
 * - SYN_REUSED: SYN received after an earlier flow of the same client port. The endpoint may still
 *   be in TIME-WAIT and reply with an ACK, upon which the client resets the old connection (RFC
 *   9293 section 3.10.7.4).
 * - SYN_ACK: SYN-ACK sent. The client must acknowledge the endpoint's initial sequence number.
 * - CONTESTED: SYN_ACK of a flow of another frontend, before a SYN of the same client port through
 *   this one. The endpoint may reply as under SYN_REUSED. The flow that acknowledges the number
 *   gets the connection.
 * - MIDSTREAM: mid-stream packet of an unknown connection. Both numbers must match the endpoint's.
 * - DONE: validated, or the endpoint was known.
 *
 * Until then, replies that do not match are not rewritten, because they may belong to a direct
 * connection between client and endpoint, which spoofed packets must not capture.
 *
 * UDP has no sequence numbers: a reply is the only evidence, so UDP flows have a separate table.
 *
 * A blind guess succeeds with probability 2^-16 (SYN_ACK) or 2^-19 (MIDSTREAM) per packet. RFC 5961
 * section 5 accepts acknowledgments within the window, usually at least 2^16 bytes.
 */
#define HANDSHAKE_WINDOW (1 << 16)
/* Bytes in flight, and bytes of retransmissions. */
#define MIDSTREAM_AHEAD (1 << 22)
#define MIDSTREAM_BEHIND (1 << 16)
/* Bytes that the endpoint's acknowledgment may differ from the client's packet. */
#define MIDSTREAM_FLIGHT (1 << 22)
/* Bytes that a FIN may be ahead of the endpoint's acknowledgment. */
#define FIN_WINDOW (1 << 22)

static __always_inline int is_opening(const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Reports whether the packet belongs to an earlier connection. Never for UDP. */
static __always_inline int is_midstream(const struct packet *packet)
{
	return packet->flow.protocol != IPPROTO_UDP && !is_opening(packet);
}

/* In host byte order. */
struct tcp_numbers {
	__u32 sequence;
	__u32 acknowledged;
	/* Acknowledgment number of the whole segment, including a FIN. */
	__u32 end;
};

/* Serial number arithmetic. */
static __always_inline int within(__u32 number, __u32 base, __u32 window)
{
	return number - base < window;
}

/* A reset does not have to acknowledge anything. */
static __always_inline int midstream_fits(const struct reverse *reverse, __u8 tcp_flags,
					  const struct tcp_numbers *reply)
{
	return within(reply->sequence, reverse->sequence - MIDSTREAM_BEHIND,
		      MIDSTREAM_BEHIND + MIDSTREAM_AHEAD) &&
	       (!(tcp_flags & TCP_ACK) ||
		within(reply->acknowledged, reverse->acknowledged - MIDSTREAM_FLIGHT,
		       2 * MIDSTREAM_FLIGHT));
}

/* Returns the validation after a reply, or -1 if the reply does not belong to the flow. */
static __always_inline int validation_after_reply(const struct reverse *reverse, __u8 tcp_flags,
						  const struct tcp_numbers *reply)
{
	switch (reverse->validation) {
	case VALIDATION_SYN:
		if ((tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
			return VALIDATION_SYN_ACK;
		return tcp_flags & TCP_RST ? VALIDATION_SYN : -1;
	case VALIDATION_SYN_REUSED:
	case VALIDATION_CONTESTED:
		if ((tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
			return VALIDATION_SYN_ACK;
		return reverse->validation;
	case VALIDATION_MIDSTREAM:
		if (!midstream_fits(reverse, tcp_flags, reply))
			return -1;
		return tcp_flags & TCP_RST ? VALIDATION_MIDSTREAM : VALIDATION_DONE;
	default:
		return reverse->validation;
	}
}

/* Reports whether the endpoint has sent a SYN-ACK that is not yet acknowledged. */
static __always_inline int has_syn_ack(const struct reverse *reverse)
{
	return reverse->validation == VALIDATION_SYN_ACK ||
	       reverse->validation == VALIDATION_CONTESTED;
}

/* Reports whether the client has received the SYN-ACK. */
static __always_inline int acknowledges_syn_ack(const struct reverse *reverse, __u32 acknowledged)
{
	return within(acknowledged, reverse->sequence + 1, HANDSHAKE_WINDOW);
}

/* Returns the validation after a client's packet other than a SYN. */
static __always_inline int validation_after_client(const struct reverse *reverse,
						   __u32 acknowledged)
{
	switch (reverse->validation) {
	case VALIDATION_SYN:
	case VALIDATION_SYN_REUSED:
		/* The SYN-ACK was not seen because the state was lost. */
		return VALIDATION_MIDSTREAM;
	case VALIDATION_SYN_ACK:
	case VALIDATION_CONTESTED:
		return acknowledges_syn_ack(reverse, acknowledged) ? VALIDATION_DONE :
								     reverse->validation;
	default:
		return reverse->validation;
	}
}
