/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

/* Other packet counters, named in lower case without EVENT_. */
enum event {
	/* The kernel resolves the next hop, because the neighbour is unresolved or the driver does
	 * not accept the frame. On veth these are all packets, unless --veth-transmit is set.
	 */
	EVENT_PASSED_TO_KERNEL,
	/* Forwarded to a former primary of the row. Rises after rows have moved, once per active
	 * flow and node.
	 */
	EVENT_LOOKUP_FORWARDED,
	/* No former primary knew the flow: returned to the primary, which selects an endpoint. */
	EVENT_LOOKUP_RETURNED,
	/* Forwarded to the primary of the flow's row for another zone (trafficDistribution). */
	EVENT_LOOKUP_OTHER_ZONE,
	/* Another node owns the flow. This node sends the flow's packets to it from now on. */
	EVENT_OVERRIDE_ADDED,
	/* Sent by an override to the node that owns the flow. */
	EVENT_OVERRIDE_USED,
	/* An echo request to a VIP was answered. */
	EVENT_ECHO_REPLY_SENT,
	/* A client was refused by a TCP reset or an ICMP port unreachable error: the Service has no
	 * endpoint, the connection has ended, or the flow's share is refused. Also counted as
	 * dropped.
	 */
	EVENT_REJECT_SENT,
	/* A client got an ICMP error to send smaller packets. Also counted as dropped
	 * (packet_too_big).
	 */
	EVENT_TOO_BIG_SENT,
	/* A packet from an endpoint's port that the node's conntrack treats as a new connection,
	 * without a known flow of a VIP. Its source may be translated. Pods that open UDP flows
	 * from their serving port count, too.
	 */
	EVENT_REPLY_WITHOUT_FLOW,
	/* A new entry went to the overflow table, because the VIP is over its quota, so that it
	 * evicts no entries of other VIPs: a flood or a busy resolver.
	 */
	EVENT_OVER_QUOTA,
	/* Replied to another node's probe whether this node accepts encapsulated packets. */
	EVENT_PROBE_REPLY_SENT,
	/* Sent to the next node of the row, because the primary is down. */
	EVENT_PRIMARY_DOWN,
	/* Sent to another node of the row to select an endpoint, because this node's agent is down.
	 */
	EVENT_AGENT_SILENT,
	/* Passed to the node's service proxy, which has the connection, during a migration (see
	 * docs/migrate.md).
	 */
	EVENT_PASSED_TO_PROXY,
	/* Passed to the node's stack: a frame to a VIP with VLAN tags of no uplink, or any frame
	 * with more than two tags.
	 */
	EVENT_VLAN_UNKNOWN,
	EVENTS,
};
