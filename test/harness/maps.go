// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// nodeMaps is a frontend in the output of `lbagent dump --output json`.
type nodeMaps struct {
	local     bool
	endpoints map[netip.Addr]bool
	shares    map[netip.Addr]int
}

// Balanced checks that the maps of all Ready nodes forward TCP port 80 of a VIP to exactly the live pods of
// a selector, each with its share.
func (c *Cluster) Balanced(ctx context.Context, vip netip.Addr, namespace, selector string) error {
	pods, err := c.podAddresses(ctx, vip, namespace, selector)
	if err != nil {
		return err
	}
	nodes, err := c.upNodes(ctx)
	if err != nil {
		return err
	}
	for name := range nodes {
		out, err := c.Exec(ctx, name, filepath.Join(c.root, "bin", "lbagent"), "dump", "--output", "json")
		if err != nil {
			return err
		}
		have, err := parseMaps(out, netip.AddrPortFrom(vip, 80))
		if err != nil {
			return fmt.Errorf("maps of %s: %w", name, err)
		}
		if err := have.check(pods[name]); err != nil {
			return fmt.Errorf("maps of %s: %s: %w", name, vip, err)
		}
		if have.local {
			continue
		}
		if err := have.checkShares(nodes, pods); err != nil {
			return fmt.Errorf("maps of %s: %s: %w", name, vip, err)
		}
	}
	return nil
}

func (c *Cluster) podAddresses(ctx context.Context, family netip.Addr, namespace, selector string) (map[string]map[netip.Addr]bool, error) {
	var list corev1.PodList
	if err := c.Get(ctx, &list, "-n", namespace, "pods", "-l", selector); err != nil {
		return nil, err
	}
	pods := map[string]map[netip.Addr]bool{}
	for _, pod := range list.Items {
		if !isLive(&pod) {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			address, err := netip.ParseAddr(ip.IP)
			if err != nil {
				return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
			}
			if address.Is4() != family.Is4() {
				continue
			}
			if pods[pod.Spec.NodeName] == nil {
				pods[pod.Spec.NodeName] = map[netip.Addr]bool{}
			}
			pods[pod.Spec.NodeName][address] = true
		}
	}
	return pods, nil
}

func (c *Cluster) upNodes(ctx context.Context) (map[string]netip.Addr, error) {
	var list corev1.NodeList
	if err := c.Get(ctx, &list, "nodes"); err != nil {
		return nil, err
	}
	nodes := map[string]netip.Addr{}
	for _, node := range list.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type != corev1.NodeReady || condition.Status != corev1.ConditionTrue {
				continue
			}
			number, err := strconv.Atoi(strings.TrimPrefix(node.Name, "node"))
			if err != nil {
				return nil, fmt.Errorf("node %s: %w", node.Name, err)
			}
			nodes[node.Name] = NodeAddress(number, ClientIPv4)
		}
	}
	return nodes, nil
}

func (m nodeMaps) check(pods map[netip.Addr]bool) error {
	if !maps.Equal(m.endpoints, pods) {
		return fmt.Errorf("the endpoints are %v, want %v", sorted(m.endpoints), sorted(pods))
	}
	return nil
}

// checkShares compares each node's rows with its share of the pods, with the 10 % tolerance of hashing.
func (m nodeMaps) checkShares(nodes map[string]netip.Addr, pods map[string]map[netip.Addr]bool) error {
	rows, all := 0, 0
	for _, share := range m.shares {
		rows += share
	}
	for _, addresses := range pods {
		all += len(addresses)
	}
	for name, address := range nodes {
		want := 0
		if all > 0 {
			want = rows * len(pods[name]) / all
		}
		if have := m.shares[address]; have*10 < want*9 || have*10 > want*11 {
			return fmt.Errorf("%s has %d of %d rows for %d of %d pods", name, have, rows, len(pods[name]), all)
		}
	}
	return nil
}

var errNoFrontend = errors.New("no such frontend")

func parseMaps(dump []byte, frontend netip.AddrPort) (nodeMaps, error) {
	found := nodeMaps{endpoints: map[netip.Addr]bool{}, shares: map[netip.Addr]int{}}
	var held consoleapi.Maps
	if err := json.Unmarshal(dump, &held); err != nil {
		return found, fmt.Errorf("read the dump: %w", err)
	}
	at := slices.IndexFunc(held.Frontends, func(f consoleapi.MapFrontend) bool {
		return netip.AddrPortFrom(f.VIP, f.Port) == frontend && f.Protocol == "TCP"
	})
	if at < 0 {
		return found, fmt.Errorf("%s: %w", frontend, errNoFrontend)
	}
	entry := held.Frontends[at]
	found.local = entry.OwnEndpointsFirst
	for _, table := range held.EndpointTables {
		for _, endpoint := range held.Endpoints {
			if table.Slot == entry.EndpointTable && table.Rows[endpoint.ID] > 0 {
				found.endpoints[endpoint.Address.Addr()] = true
			}
		}
	}
	for _, table := range held.NodeTables {
		for _, node := range append(held.Nodes, held.Self) {
			if rows := table.Rows[node.ID]; table.Slot == entry.NodeTable && rows > 0 {
				found.shares[node.IPv4] = rows
			}
		}
	}
	return found, nil
}

func sorted(set map[netip.Addr]bool) []string {
	var list []string
	for address := range set {
		list = append(list, address.String())
	}
	slices.Sort(list)
	return list
}
