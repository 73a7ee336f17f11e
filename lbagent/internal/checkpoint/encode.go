// SPDX-License-Identifier: Apache-2.0

// Package checkpoint saves an agent's objects for the next one, which may start without the API server. The
// file is valid for one boot of one node. It contains passwords, so it is written to memory only: see Open.
package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// header is the start of every file: the version of the format, before the checksum of the content.
const header = "millrace-agent-objects 1 sha256:"

// State is a checkpoint.
type State struct {
	// Objects are the objects of the agent, without TunnelKey and Down: the keys are in the pinned maps,
	// and Nodes contains which nodes are down.
	Objects *model.Snapshot
	// Generations are the generations of the node's tunnel keys. The maps contain only a part of each
	// number.
	Generations []uint32
	Nodes       []membership.Known
}

type content struct {
	BootID         string
	NodeName       string
	Node           *corev1.Node
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
	VIPs           []*millracev1beta1.VIP
	Pools          []*millracev1beta1.VIPPool
	LBNodes        []*millracev1beta1.LBNode
	Peers          []*millracev1beta1.LBPeer
	Advertisements []*millracev1beta1.VIPAdvertisement
	Routes         []*millracev1beta1.VIPRoute
	// Passwords may be binary.
	Passwords   map[string][]byte
	Generations []uint32
	Nodes       []membership.Known
}

func encode(state State, bootID string) ([]byte, error) {
	s := state.Objects
	passwords := map[string][]byte{}
	for secret, password := range s.Passwords {
		passwords[secret] = []byte(password)
	}
	body, err := json.Marshal(content{
		BootID: bootID, NodeName: s.NodeName, Node: s.Node,
		Services: s.Services, EndpointSlices: s.EndpointSlices,
		VIPs: s.VIPs, Pools: s.Pools, LBNodes: s.LBNodes,
		Peers: s.Peers, Advertisements: s.Advertisements, Routes: s.Routes,
		Passwords: passwords, Generations: state.Generations, Nodes: state.Nodes,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the objects: %w", err)
	}
	return append([]byte(header+sum(body)+"\n"), body...), nil
}

func sum(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

func decode(file []byte, bootID, nodeName string) (*State, error) {
	rest, found := bytes.CutPrefix(file, []byte(header))
	if !found {
		return nil, errors.New("it has another version or is not a checkpoint")
	}
	said, body, found := bytes.Cut(rest, []byte("\n"))
	if !found || string(said) != sum(body) {
		return nil, errors.New("it is truncated or damaged")
	}
	var c content
	if err := json.Unmarshal(body, &c); err != nil {
		return nil, fmt.Errorf("decode the objects: %w", err)
	}
	switch {
	case c.BootID != bootID:
		return nil, errors.New("it was written before the node's last boot")
	case c.NodeName != nodeName:
		return nil, fmt.Errorf("it belongs to node %q", c.NodeName)
	case c.hasNull():
		return nil, errors.New("it contains a null object")
	}
	passwords := map[string]string{}
	for secret, password := range c.Passwords {
		passwords[secret] = string(password)
	}
	return &State{
		Objects: &model.Snapshot{
			NodeName: c.NodeName, Node: c.Node,
			Services: c.Services, EndpointSlices: c.EndpointSlices,
			VIPs: c.VIPs, Pools: c.Pools, LBNodes: c.LBNodes,
			Peers: c.Peers, Advertisements: c.Advertisements, Routes: c.Routes,
			Passwords: passwords,
		},
		Generations: c.Generations,
		Nodes:       c.Nodes,
	}, nil
}

func (c *content) hasNull() bool {
	return hasNil(c.Services) || hasNil(c.EndpointSlices) || hasNil(c.VIPs) || hasNil(c.Pools) ||
		hasNil(c.LBNodes) || hasNil(c.Peers) || hasNil(c.Advertisements) || hasNil(c.Routes)
}

func hasNil[T any](objects []*T) bool { return slices.Contains(objects, nil) }
