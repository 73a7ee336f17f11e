/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

/* What else is counted, by name: EVENT_REFUSED is refused. */
enum event {
	/* The next hop was left to the kernel: the neighbour is not resolved, or the driver does
	 * not take the frame. On veth these are all, unless --veth-transmit is set.
	 */
	EVENT_HANDED_TO_KERNEL,
	/* Sent on to a previous primary of the row. It rises after rows have moved, once for each
	 * living flow and node.
	 */
	EVENT_SECOND_CHANCE,
	/* No previous primary knew the flow: sent back to the primary, which chooses. */
	EVENT_SECOND_CHANCE_RETURNED,
	/* Sent on to the primary of the flow's row for another zone (trafficDistribution). */
	EVENT_OTHER_ZONE,
	/* Another node holds the flow. From now on this node sends it there. */
	EVENT_EXCEPTION_LEARNED,
	/* Sent by an exception to the node that holds the flow. */
	EVENT_EXCEPTION_USED,
	/* An echo request to a VIP was answered. */
	EVENT_ECHO_ANSWERED,
	/* A client was refused, by a TCP reset or ICMP port unreachable: the Service has no
	 * endpoint, its connection has ended, or the flow is in a share that is refused. Its
	 * packet counts as dropped.
	 */
	EVENT_REFUSED,
	/* A client got an ICMP error to send smaller packets. Its packet counts as dropped
	 * (encap_too_big).
	 */
	EVENT_TOO_BIG_TOLD,
	/* For the stack a pod's packet begins a connection, though it does not for the pod: it
	 * comes from an endpoint's port, and no flow of a VIP is known. It may get another
	 * source. A pod that begins UDP flows at the port where it serves counts, too.
	 */
	EVENT_REPLY_UNKNOWN,
	/* An entry of a VIP that is over its quota of a table was written to the second one,
	 * so that it evicts nothing of other VIPs: a flood or a busy resolver.
	 */
	EVENT_OVER_QUOTA,
	/* Another node asked whether this one takes encapsulated packets. */
	EVENT_PROBE_ANSWERED,
	/* Sent to the next node of its row, whose primary is down. */
	EVENT_PRIMARY_DOWN,
	/* Sent to another node of its row, which chooses the endpoint: this node's agent is silent. */
	EVENT_AGENT_SILENT,
	/* A connection of the node's service proxy: left to the stack, while the cluster moves
	 * (see docs/migrate.md).
	 */
	EVENT_LEFT_TO_PROXY,
	EVENTS,
};
