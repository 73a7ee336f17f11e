/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

/* Why a packet was dropped. Counters and tools show these names: DROP_NO_FRONTEND is
 * no_frontend. New reasons go before DROP_REASONS.
 */
enum drop_reason {
	/* Not dropped. */
	DROP_NONE,
	/* To a VIP, shorter than its headers say. */
	DROP_MALFORMED,
	/* A fragment to a VIP that is of ICMP, or would overlap the transport header. */
	DROP_FRAGMENT,
	/* A later fragment to a VIP. Its first one, with the ports, was not seen on this node in
	 * the last 30 s, or no node knows its flow. It overtook the first one, or the router
	 * sent the two to different nodes.
	 */
	DROP_FRAGMENT_EARLY,
	/* More IPv6 extension headers to a VIP than 6, or longer ones than 256 bytes. */
	DROP_IPV6_EXTENSION,
	/* To a VIP with a source route: an IPv4 option (RFC 7126), or an IPv6 routing header of
	 * type 0 (RFC 5095) or with segments left.
	 */
	DROP_SOURCE_ROUTE,
	/* To a VIP, of a protocol that none of its Services can have. */
	DROP_VIP_PROTOCOL,
	/* ICMP to a VIP: no echo request, no error and no neighbour solicitation. */
	DROP_ICMP_TYPE,
	/* An ICMP error to a VIP. The VIP did not send the embedded packet, or its ports are
	 * missing.
	 */
	DROP_ICMP_EMBEDDED,
	/* An ICMP error about a connection that no node of its row knows: late or forged. */
	DROP_ICMP_NO_CONNECTION,
	/* An echo request from an address that is not a single host's. */
	DROP_ANSWER_SOURCE,
	/* An echo request beyond the rate limit: 100 a second from a source, 1,000 of a VIP,
	 * 10,000 in all.
	 */
	DROP_ANSWER_LIMIT,
	/* To an address of a pool (status.usable) that is no VIP. Sent back, it would loop. */
	DROP_POOL_UNASSIGNED,
	/* To a VIP, on a port that no Service has: mostly scanners. Sent back, it would loop. */
	DROP_NO_FRONTEND,
	/* The frontend's source ranges do not hold the client (loadBalancerSourceRanges). */
	DROP_SOURCE_RANGE,
	/* The frontend has no endpoint, anywhere or on the node that has to serve it. */
	DROP_NO_ENDPOINT,
	/* The endpoint of an established TCP connection no longer exists. The client gets a
	 * reset.
	 */
	DROP_ENDPOINT_GONE,
	/* The client uses this source port at the same endpoint through another frontend. No
	 * other endpoint was free of such a conflict.
	 */
	DROP_TUPLE_CONFLICT,
	/* The kernel could not store the new flow. Raise --connections or --udp-flows of the
	 * agents.
	 */
	DROP_CONNECTION_STORE,
	/* The row of the node table names no node. It should not happen: please report it. */
	DROP_ROW_EMPTY,
	/* The node that the row names is not known here. Compare the LBNodes with the agent's
	 * log.
	 */
	DROP_NODE_UNKNOWN,
	/* The node and this one have no address family in common. */
	DROP_NODE_FAMILY,
	/* No route to the node. */
	DROP_NODE_ROUTE,
	/* IP forwarding is off on the interface, so the kernel gives no next hop. Turn it on. */
	DROP_FORWARDING_OFF,
	/* Encapsulated, it is longer than the path MTU to the node: see docs/install.md. */
	DROP_ENCAP_TOO_BIG,
	/* The driver left too little room in front of the packet. Use generic mode or another
	 * driver.
	 */
	DROP_HEADROOM,
	/* The next hop was left to the kernel, but the driver takes no metadata. */
	DROP_HANDOVER,
	/* Encapsulated by a host that is no node of the cluster: forged, or a node's address has
	 * changed.
	 */
	DROP_TUNNEL_SOURCE,
	/* A notice that its subject did not send, or that is not for this ingress node: forged,
	 * or under way for long.
	 */
	DROP_TUNNEL_EXCEPTION,
	/* Our VNI, but not in the form that our nodes send. */
	DROP_TUNNEL_MALFORMED,
	/* Encapsulated for an address that is no VIP. */
	DROP_TUNNEL_NO_VIP,
	/* RFC 6040 section 4.2: the outer header has a congestion mark, but the inner one has no
	 * ECN.
	 */
	DROP_TUNNEL_CONGESTION,
	/* The kernel had no memory to rewrite a reply. The client does not know the endpoint. */
	DROP_REPLY_REWRITE,
	/* A new flow in the share of a VIPRoute's backend that is refused. */
	DROP_SHARE_REFUSED,
	/* Encapsulated by a node, but come in by an uplink on which that node is not reached:
	 * forged, or see docs/security.md#asymmetric-routing-between-nodes.
	 */
	DROP_TUNNEL_UPLINK,
	/* Would leave this node with our VNI, but this node's programs did not encapsulate it: a
	 * pod or process of this node forges packets of nodes.
	 */
	DROP_TUNNEL_EGRESS,
	/* Of a flow that this node does not know, though another one may. In this second too
	 * many such packets of the VIP or the source were of no flow at all. The client repeats
	 * it.
	 */
	DROP_SECOND_CHANCE_LIMIT,
	/* Encapsulated with a node's address, but its tag is wrong, or of a key that is not
	 * accepted.
	 */
	DROP_TUNNEL_TAG,
	/* Encapsulated with a node's address, but without a tag, though tags are required. */
	DROP_TUNNEL_UNTAGGED,
	/* A probe of a node whose proof is wrong, or that is for another node. See whether all
	 * nodes have the same keys.
	 */
	DROP_TUNNEL_PROBE,
	/* The client is this node, which has the endpoint, too, and no other node can serve it:
	 * see docs/cni.md#clients-on-nodes.
	 */
	DROP_OWN_SOURCE,
	/* To an address of an announced aggregate that is neither a VIP nor of a pool. Sent
	 * back, it would loop.
	 */
	DROP_AGGREGATE_UNASSIGNED,
	/* The driver took no frame that was sent back where it came in: its ring is full. Raise
	 * it (ethtool -G); on veth see --veth-transmit. It was counted as forwarded before, and
	 * has no sample.
	 */
	DROP_TRANSMIT,
	/* The driver of another uplink took no frame: its ring is full, it is down, or its MTU
	 * too small. It was counted as forwarded before, and has no sample.
	 */
	DROP_REDIRECT,
	/* From an address that no client has: a VIP, a pool's, loopback, multicast, broadcast,
	 * or of no host at all.
	 */
	DROP_MARTIAN,
	/* A new UDP flow from the address and port of an endpoint: the endpoint of the VIP and that
	 * one would answer each other without end. Have the pod send from another port.
	 */
	DROP_ENDPOINT_SOURCE,
	DROP_REASONS,
};
