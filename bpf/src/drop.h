/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

/* Why a packet was not forwarded. The names are what counters and tools show:
 * DROP_NO_FRONTEND is no_frontend. New reasons go before DROP_REASONS.
 */
enum drop_reason {
	/* Not dropped. */
	DROP_NONE,
	/* To a VIP, shorter than its headers say. */
	DROP_MALFORMED,
	/* A fragment to a VIP that cannot be served: of ICMP, or one that would overlap
	 * the transport header.
	 */
	DROP_FRAGMENT,
	/* A fragment to a VIP of which the first one, with the ports, was not seen on this
	 * node in the last 30 s, or whose flow nobody knows.
	 */
	DROP_FRAGMENT_EARLY,
	/* More or longer IPv6 extension headers to a VIP than are read. */
	DROP_IPV6_EXTENSION,
	/* To a VIP by source route: an IPv4 option (RFC 7126) or an IPv6 routing header
	 * that is of type 0 (RFC 5095) or has somewhere left to go.
	 */
	DROP_SOURCE_ROUTE,
	/* To a VIP, of a protocol that none of its Services can have. */
	DROP_VIP_PROTOCOL,
	/* ICMP to a VIP that is neither an echo request nor an error about what it sent. */
	DROP_ICMP_TYPE,
	/* An ICMP error to a VIP about a packet that is not the VIP's, or of which it does
	 * not show the ports.
	 */
	DROP_ICMP_EMBEDDED,
	/* An ICMP error about a connection that no node of its row knows. */
	DROP_ICMP_NO_CONNECTION,
	/* An echo request from an address that is not one host's, which nobody answers. */
	DROP_ANSWER_SOURCE,
	/* An echo request beyond what is answered in a second. */
	DROP_ANSWER_LIMIT,
	/* To an address of a pool that is no VIP. Never back to the router. */
	DROP_POOL_UNASSIGNED,
	/* To a VIP, on a port that no Service has. Never back to the router. */
	DROP_NO_FRONTEND,
	/* The frontend admits certain sources, and the client is none of them. */
	DROP_SOURCE_RANGE,
	/* The frontend has no endpoint: nowhere, or not on the node asked. */
	DROP_NO_ENDPOINT,
	/* The endpoint of an established TCP connection no longer exists. */
	DROP_ENDPOINT_GONE,
	/* The client uses this source port towards the same endpoint through
	 * another frontend, and no other endpoint was free of such a conflict.
	 */
	DROP_TUPLE_CONFLICT,
	/* The kernel could not store the new flow. */
	DROP_CONNECTION_STORE,
	/* The row of the table names no node. */
	DROP_ROW_EMPTY,
	/* The node that the row names is not known here. */
	DROP_NODE_UNKNOWN,
	/* The node and this one have no address family in common. */
	DROP_NODE_FAMILY,
	/* No route to the node. */
	DROP_NODE_ROUTE,
	/* IP forwarding is off on the interface, so the kernel gives no next hop. */
	DROP_FORWARDING_OFF,
	/* Longer than the path to the node allows once encapsulated. */
	DROP_ENCAP_TOO_BIG,
	/* The driver left too little room in front of the packet. */
	DROP_HEADROOM,
	/* The neighbour is not resolved and the driver carries no metadata, so the
	 * packet could not be handed to the kernel.
	 */
	DROP_HANDOVER,
	/* Encapsulated by a host that is no node of the cluster. */
	DROP_TUNNEL_SOURCE,
	/* Says that a node holds a flow, but was not sent by that node, or not to the one
	 * that the packet came in by.
	 */
	DROP_TUNNEL_EXCEPTION,
	/* Our VNI, but not in the form that our nodes send. */
	DROP_TUNNEL_MALFORMED,
	/* Encapsulated for an address that is no VIP. */
	DROP_TUNNEL_NO_VIP,
	/* RFC 6040 section 4.2: congestion was marked on the way around a packet
	 * whose sender knows no such marks.
	 */
	DROP_TUNNEL_CONGESTION,
	/* The kernel found no memory to rewrite a reply, which the client would not know
	 * by the endpoint's address.
	 */
	DROP_REPLY_REWRITE,
	DROP_REASONS,
};

/* What happened to packets that were forwarded all the same. */
enum event {
	/* Sending was left to the kernel: neighbour not resolved, or an interface
	 * whose driver does not take the frame.
	 */
	EVENT_HANDED_TO_KERNEL,
	/* Handed on to a former owner of the row. */
	EVENT_SECOND_CHANCE,
	/* No former owner knew the flow; handed back to the node that asked. */
	EVENT_SECOND_CHANCE_RETURNED,
	/* Handed on to a node that serves the flow's row for another zone. */
	EVENT_OTHER_ZONE,
	/* A former owner holds the flow, and this node sends it straight there from now on. */
	EVENT_EXCEPTION_LEARNED,
	/* Sent straight to the node that holds the flow. */
	EVENT_EXCEPTION_USED,
	/* An echo request to a VIP was answered. */
	EVENT_ECHO_ANSWERED,
	/* A client was told that a Service has no endpoint. Its packet counts as dropped. */
	EVENT_REFUSED,
	/* A client was told to send smaller packets. Its packet counts as dropped. */
	EVENT_TOO_BIG_TOLD,
	EVENTS,
};
