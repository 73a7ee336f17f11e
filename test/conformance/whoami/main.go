// SPDX-License-Identifier: Apache-2.0

// Command whoami replaces CoreDNS with its plugin whoami in the conformance tests: it answers every address
// query with the client's address.
package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/net/dns/dnsmessage"
)

func main() {
	if err := serve(":53"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(at string) error {
	address, err := net.ResolveUDPAddr("udp", at)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", address)
	if err != nil {
		return fmt.Errorf("serve DNS: %w", err)
	}
	defer socket.Close()
	fmt.Println("serving DNS at", socket.LocalAddr())
	query := make([]byte, 512)
	for {
		length, client, err := socket.ReadFromUDPAddrPort(query)
		if err != nil {
			return fmt.Errorf("read a query: %w", err)
		}
		response, err := answer(query[:length], client.Addr().Unmap())
		if err != nil {
			fmt.Fprintf(os.Stderr, "a query of %s: %v\n", client, err)
			continue
		}
		if _, err := socket.WriteToUDPAddrPort(response, client); err != nil {
			fmt.Fprintf(os.Stderr, "answer %s: %v\n", client, err)
		}
	}
}

func answer(query []byte, client netip.Addr) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	response := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, OpCode: header.OpCode, Authoritative: true, RecursionDesired: header.RecursionDesired,
		},
		Questions: []dnsmessage.Question{question},
	}
	resource := dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class}
	switch {
	case question.Type == dnsmessage.TypeA && client.Is4():
		response.Answers = []dnsmessage.Resource{{Header: resource, Body: &dnsmessage.AResource{A: client.As4()}}}
	case question.Type == dnsmessage.TypeAAAA && client.Is6():
		response.Answers = []dnsmessage.Resource{{Header: resource, Body: &dnsmessage.AAAAResource{AAAA: client.As16()}}}
	}
	return response.Pack()
}
