// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

const maxDatagram = 65535

// udpServer answers each datagram with "POD NODE CLIENT PAYLOAD", "size N …" with N unfragmented bytes, and
// "later DURATION" again after that time. It answers from the datagram's destination address, which needs a
// socket per family.
type udpServer struct {
	id         identity
	v4         *ipv4.PacketConn
	v6         *ipv6.PacketConn
	raw4, raw6 *net.UDPConn
}

func listenUDP(address string, id identity) (*udpServer, error) {
	socket4, err := net.ListenPacket("udp4", address)
	if err != nil {
		return nil, fmt.Errorf("serve UDP: %w", err)
	}
	socket6, err := net.ListenPacket("udp6", address)
	if err != nil {
		socket4.Close()
		return nil, fmt.Errorf("serve UDP: %w", err)
	}
	s := &udpServer{
		id: id, v4: ipv4.NewPacketConn(socket4), v6: ipv6.NewPacketConn(socket6),
		raw4: socket4.(*net.UDPConn), raw6: socket6.(*net.UDPConn),
	}
	err = errors.Join(s.v4.SetControlMessage(ipv4.FlagDst, true), s.v6.SetControlMessage(ipv6.FlagDst, true))
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("serve UDP: enable destination addresses: %w", err)
	}
	return s, nil
}

func (s *udpServer) Close() {
	s.v4.Close()
	s.v6.Close()
}

// serve returns when a socket fails or is closed.
func (s *udpServer) serve() error {
	ended := make(chan error, 2)
	go func() { ended <- s.serve4() }()
	go func() { ended <- s.serve6() }()
	return <-ended
}

func (s *udpServer) serve4() error {
	buffer := make([]byte, maxDatagram)
	for {
		n, control, client, err := s.v4.ReadFrom(buffer)
		if err != nil {
			return err
		}
		var from *ipv4.ControlMessage
		if control != nil {
			from = &ipv4.ControlMessage{Src: control.Dst}
		}
		s.answer(s.raw4, client, buffer[:n], func(answer []byte) error {
			_, err := s.v4.WriteTo(answer, from, client)
			return err
		})
	}
}

func (s *udpServer) serve6() error {
	buffer := make([]byte, maxDatagram)
	for {
		n, control, client, err := s.v6.ReadFrom(buffer)
		if err != nil {
			return err
		}
		var from *ipv6.ControlMessage
		if control != nil {
			from = &ipv6.ControlMessage{Src: control.Dst}
		}
		s.answer(s.raw6, client, buffer[:n], func(answer []byte) error {
			_, err := s.v6.WriteTo(answer, from, client)
			return err
		})
	}
}

func (s *udpServer) answer(socket *net.UDPConn, client net.Addr, payload []byte, send func([]byte) error) {
	if size, found := parseSize(payload); found {
		answerOfSize(socket, socket == s.raw6, size, send)
		return
	}
	answer := s.reply(client, payload)
	if wait, found := parseDelay(payload); found {
		scheduleAnswer(wait, send, answer)
	}
	_ = send(answer)
}

func (s *udpServer) reply(client net.Addr, payload []byte) []byte {
	return fmt.Appendf(nil, "%s %s %s %s", nonEmpty(s.id.Pod), nonEmpty(s.id.Node), client, payload)
}

// nonEmpty keeps the number of words in a reply.
func nonEmpty(word string) string {
	if word == "" {
		return "-"
	}
	return word
}
