/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

/* Drop reasons. Counters and tools use these names in lower case without DROP_. New reasons go
 * before DROP_REASONS.
 */
enum drop_reason {
	/* Not dropped. */
	DROP_NONE,
	/* To a VIP, truncated or with inconsistent lengths. */
	DROP_MALFORMED,
	/* A fragment to a VIP that is ICMP, or that would overlap the transport header. */
	DROP_FRAGMENT,
	/* A later fragment to a VIP. Its first fragment, with the ports, was not seen on this node
	 * in the last 30 s, or no node knows its flow: the fragments were reordered, or the router
	 * sent them to different nodes.
	 */
	DROP_FIRST_FRAGMENT_MISSING,
	/* More than 6 IPv6 extension headers, or more than 256 bytes of them, to a VIP. */
	DROP_IPV6_EXTENSION,
	/* To a VIP with a source route: an IPv4 option (RFC 7126), or an IPv6 routing header of
	 * type 0 (RFC 5095) or with segments left.
	 */
	DROP_SOURCE_ROUTE,
	/* To a VIP, with a protocol that Services do not support. */
	DROP_VIP_PROTOCOL,
	/* ICMP to a VIP other than echo requests, errors and neighbour solicitations. */
	DROP_ICMP_TYPE,
	/* An ICMP error to a VIP whose embedded packet is not from the VIP or lacks ports. */
	DROP_ICMP_EMBEDDED,
	/* An ICMP error about a connection that no node of its row knows: late or forged. */
	DROP_ICMP_NO_CONNECTION,
	/* An echo request whose source is not a unicast address. */
	DROP_ECHO_SOURCE,
	/* An echo request above the rate limit per second: 100 per source, 1,000 per VIP, 10,000 in
	 * total.
	 */
	DROP_ECHO_RATE_LIMIT,
	/* To an unassigned address of a pool (status.usable). Forwarding it would cause a loop. */
	DROP_POOL_UNASSIGNED,
	/* To a VIP, on a port of no Service, mostly by scanners. Forwarding it would cause a loop.
	 */
	DROP_NO_FRONTEND,
	/* The client is not in the Service's loadBalancerSourceRanges. */
	DROP_SOURCE_RANGE,
	/* The frontend has no endpoint, in the cluster or on the node that has to serve it. */
	DROP_NO_ENDPOINT,
	/* The endpoint of an established TCP connection no longer exists. The client gets a reset.
	 */
	DROP_ENDPOINT_GONE,
	/* The client uses this source port with the same endpoint through another frontend, and no
	 * other endpoint is free of such a conflict.
	 */
	DROP_TUPLE_CONFLICT,
	/* The flow table rejected a new flow. Raise --max-connections or --max-udp-flows of the
	 * agents.
	 */
	DROP_FLOW_INSERT,
	/* The row of the node table has no node. This is a bug: please report it. */
	DROP_NO_NODE,
	/* The row's node is unknown on this node. Compare the LBNodes with the agent's log. */
	DROP_NODE_UNKNOWN,
	/* The other node and this node have no address family in common. */
	DROP_NODE_FAMILY,
	/* No route to the node. */
	DROP_NODE_ROUTE,
	/* IP forwarding is disabled on the interface, so the FIB lookup fails. Enable it. */
	DROP_FORWARDING_DISABLED,
	/* Longer than the path MTU to the node when encapsulated: see docs/install.md. */
	DROP_PACKET_TOO_BIG,
	/* The driver left too little headroom. Use generic mode or another driver. */
	DROP_HEADROOM,
	/* The next hop had to be resolved by the kernel, but the driver does not support XDP
	 * metadata.
	 */
	DROP_XDP_METADATA,
	/* Encapsulated by a host that is not a node of the cluster: forged, or a node's address has
	 * changed.
	 */
	DROP_TUNNEL_SOURCE,
	/* A redirect that its sender may not send, or for another ingress node: forged or delayed.
	 */
	DROP_TUNNEL_REDIRECT,
	/* Malformed encapsulation with Millrace's VNI. */
	DROP_TUNNEL_MALFORMED,
	/* Encapsulated for an address that is not a VIP. */
	DROP_TUNNEL_NO_VIP,
	/* The outer header has a congestion mark, but the inner header does not support ECN (RFC
	 * 6040 section 4.2).
	 */
	DROP_TUNNEL_ECN,
	/* The kernel had no memory to rewrite a reply, whose source would have been the endpoint.
	 */
	DROP_REPLY_REWRITE,
	/* A new flow in the share of a VIPRoute backend that is refused. */
	DROP_BACKEND_INVALID,
	/* Encapsulated by a node, but received on an uplink by which the node is not reached:
	 * forged, or see docs/security.md#asymmetric-routing-between-nodes.
	 */
	DROP_TUNNEL_UPLINK,
	/* An outgoing packet with Millrace's VNI that this node's programs did not encapsulate:
	 * forged by a pod or a process of this node.
	 */
	DROP_TUNNEL_EGRESS,
	/* A packet of a flow that this node does not know, but another node may. In this second too
	 * many such packets of the VIP or the source belonged to no flow. The client retransmits
	 * it.
	 */
	DROP_LOOKUP_RATE_LIMIT,
	/* Encapsulated with a node's address, but with a wrong tag or an unknown key. */
	DROP_TUNNEL_TAG,
	/* Encapsulated with a node's address, but without the required tag. */
	DROP_TUNNEL_UNTAGGED,
	/* A probe from a node with a wrong MAC, or for another node. Check that all nodes
	 * have the same keys.
	 */
	DROP_TUNNEL_PROBE,
	/* The client is this node, which also has the endpoint, and no other node can serve it: see
	 * docs/cni.md#clients-on-nodes.
	 */
	DROP_HAIRPIN,
	/* To an address of an announced aggregate that is neither a VIP nor in a pool. Forwarding
	 * it would cause a loop.
	 */
	DROP_AGGREGATE_UNASSIGNED,
	/* The driver rejected a frame sent by the interface on which it arrived, because its ring
	 * is full. Enlarge it (ethtool -G); on veth see --veth-transmit. Also counted as forwarded;
	 * not sampled.
	 */
	DROP_XDP_TX,
	/* The driver of another uplink rejected a frame: its ring is full, it is down, or its MTU
	 * is too small. Also counted as forwarded; not sampled.
	 */
	DROP_XDP_REDIRECT,
	/* From a source that no client can have: a VIP, an address of a pool, loopback, multicast,
	 * broadcast or an unspecified address.
	 */
	DROP_MARTIAN,
	/* A new UDP flow from the address and port of an endpoint: both endpoints would reply to
	 * each other forever. Use another source port in the pod.
	 */
	DROP_ENDPOINT_SOURCE,
	DROP_REASONS,
};
