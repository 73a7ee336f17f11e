// SPDX-License-Identifier: Apache-2.0

// Package bpf holds Millrace's BPF programs: their C sources, the compiled
// object, and the Go types of their maps, generated from the C ones.
//
// src/README.md draws the path of a packet and lists which file holds what.
package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type self -type node -type zones -type row -type group_mark -type unknown -type unknown_flow -type unknown_flow_bucket -type quota -type quotas -type row_update -type rows_write -type rows_read -type exception -type exception_bucket -type exception_secret -type exception_sweep -type frontend_key4 -type frontend_key6 -type frontend -type frontend6 -type source_range_key4 -type source_range_key6 -type endpoint -type endpoint_port -type fragment_key -type fragment -type address -type uplink -type vlan_key -type connection_key4 -type connection_key6 -type connection -type reverse_key4 -type reverse_key6 -type reverse -type half_open -type half_open_bucket -type evicted_flow -type evicted_flow_bucket -type affinity_key -type affinity -type affinity_record -type affinity_bucket -type frontend_counter -type frontend_drop -type sampling -type flow -type drop_sample -type whole_copy -type trace_step -type trace -type flow_counts -type handover -type ingress_interfaces -type trust -type trust_flag -type probe -type probe_keys -type agent_beats -type probe_kind -type node_flag -type tunnel_key -type shape -type reserved_id -type self_flag -type frontend_flag -type connection_flag -type reverse_flag -type uplink_flag -type service_proxy_mode -type proof -type drop_reason -type event -type overhead -output-stem datapath Datapath src/datapath.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter -Wno-address-of-packed-member -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type unsent -output-stem losses Losses src/losses.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -output-stem questions Questions src/questions.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
