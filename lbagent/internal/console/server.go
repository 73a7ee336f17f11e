// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const (
	maxClients  = 32
	requestTime = 10 * time.Second
	// maxRequest is the maximum size of a request in bytes: about 1,500 VIPs, or a packet in base64.
	maxRequest = 64 * 1024
)

// Server serves requests.
type Server struct {
	DataPlane DataPlane
	Hub       *Hub
	// Directory and Decisions return the state of the last pass. Decisions returns nil before the first
	// pass.
	Directory func() *Directory
	Decisions func() *Decisions
	Speaker   Speaker
	Hosts     func(context.Context, []netip.Addr) (*consoleapi.Hosts, error)
	History   func(*consoleapi.HistoryQuery) (*consoleapi.History, error)
}

// Listen opens the socket for this user only. It replaces the socket of a previous agent, unless an agent
// accepts connections on it.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of socket %s: %w (--socket)", path, err)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("listen on socket %s: another agent listens there (--socket)", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket %s of a previous agent: %w", path, err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on socket %s: %w (--socket)", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict socket %s to this user: %w", path, err), listener.Close())
	}
	return listener, nil
}

// Serve serves requests until ctx is done.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	var clients sync.WaitGroup
	defer clients.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	places := make(chan struct{}, maxClients)
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("accept on socket %s: %w", listener.Addr(), err)
		}
		select {
		case places <- struct{}{}:
		default:
			_ = write(conn, consoleapi.Line{Error: fmt.Sprintf("the console serves %d clients already", maxClients)})
			_ = conn.Close()
			continue
		}
		clients.Go(func() {
			defer func() { <-places }()
			s.handle(ctx, conn)
		})
	}
}

// handle serves one client. Errors are returned to the client only.
func (s *Server) handle(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	request, err := readRequest(conn)
	if err == nil {
		// A client sends one request. When it disconnects, the response ends.
		go func() {
			defer cancel()
			_, _ = conn.Read(make([]byte, 1))
		}()
		err = s.respond(ctx, conn, request)
	}
	if err != nil && ctx.Err() == nil {
		_ = write(conn, consoleapi.Line{Error: err.Error()})
	}
}

func readRequest(conn net.Conn) (*Request, error) {
	if err := conn.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return nil, err
	}
	line, err := bufio.NewReaderSize(conn, maxRequest).ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	request := &Request{}
	if err := json.Unmarshal(line, request); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	return request, errors.Join(request.validate(), conn.SetReadDeadline(time.Time{}))
}

func write(conn net.Conn, line consoleapi.Line) error {
	if err := conn.SetWriteDeadline(time.Now().Add(requestTime)); err != nil {
		return err
	}
	return json.NewEncoder(conn).Encode(line)
}

func (s *Server) respond(ctx context.Context, conn net.Conn, request *Request) error {
	switch request.Command {
	case Drops:
		return s.drops(ctx, conn, request.Follow)
	case Top:
		return s.top(ctx, conn, request)
	case VIPs:
		line, err := s.VIPs(request.Addresses)
		if err != nil {
			return err
		}
		return write(conn, consoleapi.Line{VIPs: line})
	case BGPPeers:
		return write(conn, consoleapi.Line{BGP: s.Peers()})
	case BGPRoutes:
		return s.routes(conn)
	case Duplicates:
		line, err := s.Hosts(ctx, request.Addresses)
		if err != nil {
			return err
		}
		line.Node = s.Directory().Node
		return write(conn, consoleapi.Line{Hosts: line})
	case History:
		line, err := s.History(request.History)
		if err != nil {
			return err
		}
		line.Node = s.Directory().Node
		return write(conn, consoleapi.Line{History: line})
	default:
		return s.trace(conn, request.Packet)
	}
}

func (s *Server) drops(ctx context.Context, conn net.Conn, follow bool) error {
	listener, leave := s.Hub.listen()
	defer leave()
	counters, err := s.DataPlane.CountersOf(nil)
	if err != nil {
		return err
	}
	header := consoleapi.Drops{
		Node: s.Directory().Node, Reasons: counters.Drops,
		Skipped: counters.SamplesSkipped, Lost: counters.SamplesLost,
	}
	if err := write(conn, consoleapi.Line{Drops: &header}); err != nil {
		return err
	}
	if follow {
		return s.follow(ctx, conn, listener)
	}
	interfaces := interfaceNames{}
	for _, drop := range s.Hub.history() {
		if err := s.writeDrop(conn, drop, interfaces); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) follow(ctx context.Context, conn net.Conn, listener *listener) error {
	interfaces := interfaceNames{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case drop := <-listener.drops:
			if err := s.writeDrop(conn, drop, interfaces); err != nil {
				return err
			}
		}
		if missed := listener.missed.Swap(0); missed > 0 {
			if err := write(conn, consoleapi.Line{Missed: missed}); err != nil {
				return err
			}
		}
	}
}

type interfaceNames map[int]string

func (n interfaceNames) get(index int) string {
	if _, known := n[index]; !known {
		n[index] = dataplane.InterfaceName(index)
	}
	return n[index]
}

func (s *Server) writeDrop(conn net.Conn, drop dataplane.Drop, interfaces interfaceNames) error {
	converted := s.convertDrop(drop, interfaces)
	return write(conn, consoleapi.Line{Drop: &converted})
}

func (s *Server) convertDrop(drop dataplane.Drop, interfaces interfaceNames) consoleapi.Drop {
	directory := s.Directory()
	return consoleapi.Drop{
		Time: drop.Time.UTC(), Node: directory.Node, Reason: drop.Reason,
		Source: drop.Source, Destination: drop.Destination, Protocol: forwarding.ProtocolName(drop.Protocol),
		Service:   directory.service(drop.Destination, drop.Protocol),
		Interface: interfaces.get(drop.Interface), Length: drop.Length,
	}
}

// RecentDrops returns the recent samples, the oldest first.
func (s *Server) RecentDrops() []consoleapi.Drop {
	var recent []consoleapi.Drop
	interfaces := interfaceNames{}
	for _, drop := range s.Hub.history() {
		recent = append(recent, s.convertDrop(drop, interfaces))
	}
	return recent
}

func (s *Server) top(ctx context.Context, conn net.Conn, request *Request) error {
	for {
		line, err := s.Counters(request.matches)
		if err != nil {
			return err
		}
		if err := write(conn, consoleapi.Line{Counters: line}); err != nil {
			return err
		}
		if request.Interval == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(request.Interval):
		}
	}
}

func (s *Server) trace(conn net.Conn, requested *consoleapi.Packet) error {
	packet, err := packetOf(requested)
	if err != nil {
		return err
	}
	trace, err := s.DataPlane.Trace(packet)
	if err != nil {
		return err
	}
	return write(conn, consoleapi.Line{Trace: describe(packet, trace, s.Directory())})
}
