// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	clusterSuffix = ".svc.cluster.local."
	dnsTTL        = 5
	dnsTimeout    = 4 * time.Second
)

type lookup func(ctx context.Context, namespace, name string) ([]netip.Addr, error)

// dns resolves names of Services (Kubernetes DNS specification, section 2.3.1) with a request to the API
// server each, until ctx ends.
func dns(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("dns", flag.ContinueOnError)
	port := flags.Uint("port", 53, "UDP port, on all addresses")
	if err := parse(flags, args); err != nil {
		return err
	}
	get, err := apiClient()
	if err != nil {
		return err
	}
	socket, err := net.ListenPacket("udp", fmt.Sprintf(":%d", *port))
	if err != nil {
		return fmt.Errorf("serve DNS: %w", err)
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	fmt.Fprintf(stdout, "serving DNS on port %d\n", *port)
	return serveDNS(ctx, socket, func(ctx context.Context, namespace, name string) ([]netip.Addr, error) {
		body, err := get(ctx, "/api/v1/namespaces/"+namespace+"/services/"+name)
		if err != nil {
			return nil, err
		}
		var service struct {
			Spec struct {
				ClusterIPs []netip.Addr `json:"clusterIPs"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(body, &service); err != nil {
			return nil, fmt.Errorf("service %s/%s: %w", namespace, name, err)
		}
		return service.Spec.ClusterIPs, nil
	})
}

func serveDNS(ctx context.Context, socket net.PacketConn, find lookup) error {
	buffer := make([]byte, maxDatagram)
	for {
		n, client, err := socket.ReadFrom(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("serve DNS: %w", err)
		}
		query := append([]byte(nil), buffer[:n]...)
		go func() {
			ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
			defer cancel()
			if answer, err := answerDNS(ctx, query, find); err == nil {
				// The client retries if the response is lost.
				_, _ = socket.WriteTo(answer, client)
			}
		}()
	}
}

// answerDNS returns the response to a query with one question, or nil for other packets.
func answerDNS(ctx context.Context, query []byte, find lookup) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	header = dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired}
	addresses, err := resolve(ctx, question.Name.String(), find)
	switch {
	case errors.Is(err, errNotFound):
		header.RCode = dnsmessage.RCodeNameError
	case err != nil:
		header.RCode = dnsmessage.RCodeServerFailure
	}
	message := dnsmessage.Message{Header: header, Questions: []dnsmessage.Question{question}}
	for _, address := range addresses {
		head := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: dnsTTL}
		var body dnsmessage.ResourceBody
		switch {
		case address.Is4() && question.Type == dnsmessage.TypeA:
			body = &dnsmessage.AResource{A: address.As4()}
		case address.Is6() && question.Type == dnsmessage.TypeAAAA:
			body = &dnsmessage.AAAAResource{AAAA: address.As16()}
		default:
			continue
		}
		message.Answers = append(message.Answers, dnsmessage.Resource{Header: head, Body: body})
	}
	return message.Pack()
}

func resolve(ctx context.Context, name string, find lookup) ([]netip.Addr, error) {
	labels, ours := strings.CutSuffix(strings.ToLower(name), clusterSuffix)
	service, namespace, two := strings.Cut(labels, ".")
	if !ours || !two || strings.Contains(namespace, ".") {
		return nil, errNotFound
	}
	return find(ctx, namespace, service)
}
