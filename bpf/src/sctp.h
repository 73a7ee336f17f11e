/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

#include "drop_reason.h"
#include "parse.h"
#include "types.h"

/* SCTP (RFC 9260). The checksum is a CRC-32c of the whole packet without the addresses (section
 * 6.8), so only addresses are translated and the agent does not assign endpoints with another port.
 * Addresses in chunks (multi-homing) are not translated: an association uses one path, through the
 * VIP.
 *
 * Flow state is as for UDP, but mid-stream packets are detected and use lookup forwarding.
 */

#define SCTP_CHUNK_INIT 1

/* Common header and first chunk header (sections 3.1 and 3.2). */
struct sctp_start {
	__be16 source;
	__be16 destination;
	__be32 tag;
	__be32 checksum;
	__u8 chunk;
	__u8 chunk_flags;
	__be16 chunk_length;
};

/* An INIT counts as a SYN. */
static __always_inline int parse_sctp(struct xdp_md *ctx, struct packet *packet)
{
	struct sctp_start *sctp = frame_at(ctx, packet->l4);

	if ((void *)(sctp + 1) > (void *)(long)ctx->data_end ||
	    packet->length < packet->l4 - packet->l3 + sizeof(*sctp))
		return DROP_MALFORMED;
	packet->flow.client_port = sctp->source;
	packet->flow.vip_port = sctp->destination;
	packet->tcp_flags = sctp->chunk == SCTP_CHUNK_INIT ? TCP_SYN : TCP_ACK;
	return frame_holds(ctx, packet) ? DROP_NONE : DROP_MALFORMED;
}
