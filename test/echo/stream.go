// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// grpcService has one method, grpcStream, which answers each message with the server's identity.
	grpcService = "millrace.test.Echo"
	grpcStream  = "Stream"
	// closeTimeout is how long a client may take to close a WebSocket.
	closeTimeout = 3 * time.Second
)

type message struct {
	identity
	Text string `json:"text"`
}

// streams answers messages until close, which ends streams between two messages.
type streams struct {
	id     identity
	ending context.Context
	end    context.CancelFunc
	// open are streams that http.Server does not track.
	open sync.WaitGroup
	grpc *grpc.Server
}

func newStreams(id identity) *streams {
	s := &streams{id: id, grpc: grpc.NewServer()}
	s.ending, s.end = context.WithCancel(context.Background())
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: grpcService,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: grpcStream, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.serveGRPC(stream) },
		}},
	}, nil)
	return s
}

func (s *streams) close() {
	s.end()
	s.open.Wait()
}

func (s *streams) answer(text string) (string, error) {
	encoded, err := json.Marshal(message{s.id, text})
	return string(encoded), err
}

var upgrader = websocket.Upgrader{HandshakeTimeout: headerTimeout}

func (s *streams) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	s.open.Add(1)
	defer s.open.Done()
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(s.ending, func() {
		closeFrame := websocket.FormatCloseMessage(websocket.CloseGoingAway, "the server ends")
		_ = conn.WriteControl(websocket.CloseMessage, closeFrame, time.Now().Add(closeTimeout))
		_ = conn.SetReadDeadline(time.Now().Add(closeTimeout))
	})()
	for {
		kind, text, err := conn.ReadMessage()
		if err != nil {
			return
		}
		answer, err := s.answer(string(text))
		if err != nil || conn.WriteMessage(kind, []byte(answer)) != nil {
			return
		}
	}
}

func (s *streams) serveGRPC(stream grpc.ServerStream) error {
	received, ended := make(chan string), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			text := &wrapperspb.StringValue{}
			if err := stream.RecvMsg(text); err != nil {
				return
			}
			select {
			case received <- text.GetValue():
			case <-stream.Context().Done():
				return
			}
		}
	}()
	for {
		select {
		case <-s.ending.Done():
			return status.Error(codes.Unavailable, "the server ends")
		case <-ended:
			return nil
		case text := <-received:
			answer, err := s.answer(text)
			if err != nil {
				return err
			}
			if err := stream.SendMsg(wrapperspb.String(answer)); err != nil {
				return err
			}
		}
	}
}
