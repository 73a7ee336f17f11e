// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/millrace-lb/millrace/test/echo/webreport"
)

type stream struct {
	send  func(text string) error
	close func()
	// answers has received messages until ended is closed with err.
	answers chan string
	ended   chan struct{}
	err     error
}

// newStream receives until an error, which close causes.
func newStream(send func(string) error, receive func() (string, error), end func()) *stream {
	s := &stream{send: send, close: end, answers: make(chan string, 1), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		for {
			text, err := receive()
			if err != nil {
				s.err = err
				return
			}
			select {
			case s.answers <- text:
			default:
				s.err = fmt.Errorf("received an unrequested answer: %q", text)
				return
			}
		}
	}()
	return s
}

// openFunc opens a stream. ctx bounds only the opening.
type openFunc func(ctx context.Context) (*stream, error)

func (v *webClient) openers() map[string]openFunc {
	return map[string]openFunc{webreport.WebSocket: v.openWebSocket, webreport.GRPC: v.openGRPC}
}

func (v *webClient) openWebSocket(ctx context.Context) (*stream, error) {
	dialer := websocket.Dialer{NetDialContext: v.dial, TLSClientConfig: v.tls()}
	conn, response, err := dialer.DialContext(ctx, "wss://"+v.config.host+"/stream", nil)
	if err != nil {
		if response != nil {
			err = fmt.Errorf("%w: answer is %s", err, response.Status)
		}
		return nil, err
	}
	send := func(text string) error {
		_ = conn.SetWriteDeadline(time.Now().Add(v.config.timeout))
		return conn.WriteMessage(websocket.TextMessage, []byte(text))
	}
	receive := func() (string, error) {
		_, text, err := conn.ReadMessage()
		return string(text), err
	}
	return newStream(send, receive, func() { conn.Close() }), nil
}

func (v *webClient) openGRPC(ctx context.Context) (*stream, error) {
	conn, err := grpc.NewClient("passthrough:///"+v.config.grpcHost,
		grpc.WithTransportCredentials(credentials.NewTLS(v.tls())),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return v.dial(ctx, "", "") }),
	)
	if err != nil {
		return nil, err
	}
	// The stream outlives ctx.
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	end := func() {
		cancel()
		conn.Close()
	}
	description := &grpc.StreamDesc{StreamName: grpcStream, ServerStreams: true, ClientStreams: true}
	kept, err := conn.NewStream(whole, description, "/"+grpcService+"/"+grpcStream)
	if err != nil {
		end()
		return nil, err
	}
	send := func(text string) error { return kept.SendMsg(wrapperspb.String(text)) }
	receive := func() (string, error) {
		text := &wrapperspb.StringValue{}
		err := kept.RecvMsg(text)
		return text.GetValue(), err
	}
	return newStream(send, receive, end), nil
}

type persistentStream struct {
	visitors *webClient
	kind     string
	open     openFunc
	stream   *stream
}

// run sends the stream's share of the rate until ctx ends.
func (c *persistentStream) run(ctx context.Context, number int) {
	defer func() { c.stream.close() }()
	config := c.visitors.config
	plan := schedule{rate: config.rate / float64(config.streams)}
	// All streams of a kind together keep the rate.
	start := time.Now().Add(time.Duration(float64(number) / config.rate * float64(time.Second)))
	for i := 0; sleepUntil(ctx, plan.due(start, i)); i++ {
		begun := c.visitors.rounds.begin(c.kind, plan.due(start, i))
		text := fmt.Sprintf("%d of %d", i, number)
		pod, err := limited(context.WithoutCancel(ctx), config.timeout, func(ctx context.Context) (string, error) {
			return c.exchange(ctx, begun, text)
		})
		begun.end(pod, err)
	}
}

// exchange sends a message and waits for its answer, on a new stream if necessary.
func (c *persistentStream) exchange(ctx context.Context, begun *request, text string) (string, error) {
	for {
		pod, sent, err := c.once(ctx, text)
		if err == nil {
			return pod, nil
		}
		c.stream.close()
		<-c.stream.ended
		if ctx.Err() != nil {
			return "", err
		}
		begun.reopened(sent, err)
		another, openErr := c.open(ctx)
		if openErr != nil {
			return "", fmt.Errorf("open a stream again: %w", errors.Join(openErr, err))
		}
		c.stream = another
	}
}

// once uses the current stream. sent is true if the message may have arrived.
func (c *persistentStream) once(ctx context.Context, text string) (pod string, sent bool, err error) {
	select {
	case <-c.stream.ended:
		return "", false, c.stream.err
	default:
	}
	if err := c.stream.send(text); err != nil {
		return "", true, err
	}
	select {
	case <-ctx.Done():
		return "", true, ctx.Err()
	case <-c.stream.ended:
		return "", true, c.stream.err
	case answer := <-c.stream.answers:
		var from message
		if err := json.Unmarshal([]byte(answer), &from); err != nil || from.Text != text {
			return "", true, fmt.Errorf("the answer to %q is %q", text, answer)
		}
		return from.Pod, true, nil
	}
}
