/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#pragma once

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>

#include "path.h"
#include "types.h"

/* Geneve (RFC 8926) with IP payload. */
#define GENEVE_PORT 6081
/* "MLR" */
#define GENEVE_VNI 0x4d4c52
#define GENEVE_FLAG_CRITICAL 0x40

/* RFC 8926 section 7: experimental class, and a critical type. */
#define GENEVE_OPTION_CLASS 0xff4d
#define GENEVE_OPTION_TYPE 0x82

/* The type is increased by packet.zone_steps; ZONES also means not to forward the packet. */

/* Tag option of every packet. The lower 4 bits of the type are the key number; 0 is untagged. */
#define GENEVE_TAG_TYPE 0x10

struct geneve {
	/* Version in the upper 2 bits, length of the options in 4-byte words. */
	__u8 version_length;
	__u8 flags;
	__be16 protocol;
	/* In the upper 24 bits. */
	__be32 vni;
};

struct geneve_option {
	__be16 class;
	__u8 type;
	/* In 4-byte words, without these first 4 bytes. */
	__u8 length;
	/* Low 64 bits of the path (path.h), upper half first. */
	__be32 path[2];
};

/* Tag option, followed by the path's high part unless it is 0. */
struct geneve_tag {
	__be16 class;
	__u8 type;
	__u8 length;
	/* See tunnel_tag.h. */
	__u32 tag[2];
};

struct geneve_high {
	__be32 path;
};

#define GENEVE_OPTION_WORDS (sizeof(struct geneve_option) / 4)
#define GENEVE_TAG_WORDS (sizeof(struct geneve_tag) / 4)

struct tunnel {
	struct udphdr udp;
	struct geneve geneve;
	struct geneve_option option;
	struct geneve_tag tag;
};

static __always_inline int vni_is_ours(__be32 vni)
{
	return (vni & bpf_htonl(0xffffff00)) == bpf_htonl(GENEVE_VNI << 8);
}

/* "MLP": probes (probe.h), which processes of the node may send. */
#define GENEVE_VNI_PROBE 0x4d4c50

static __always_inline int vni_is_probe(__be32 vni)
{
	return vni == bpf_htonl(GENEVE_VNI_PROBE << 8);
}

struct probe_datagram {
	struct udphdr udp;
	struct geneve geneve;
	struct probe probe;
} __attribute__((packed));

enum overhead {
	OVERHEAD_IPV4 = sizeof(struct iphdr) + sizeof(struct tunnel),
	OVERHEAD_IPV6 = sizeof(struct ipv6hdr) + sizeof(struct tunnel),
	/* For a path with a high part. */
	OVERHEAD_HIGH = sizeof(struct geneve_high),
};
