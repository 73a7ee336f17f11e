// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/millrace-lb/millrace/test/echo/webreport"
)

type requester func(ctx context.Context, i int) (string, error)

func (v *webClient) requesters() map[string]requester {
	protocols := func(set func(*http.Protocols, bool)) *http.Protocols {
		p := new(http.Protocols)
		set(p, true)
		return p
	}
	of := func(transport *http.Transport) requester {
		transport.DialContext, transport.TLSClientConfig = v.dial, v.tls()
		transport.MaxIdleConnsPerHost = maxIdle
		client := &http.Client{Transport: transport}
		return func(ctx context.Context, i int) (string, error) { return v.request(ctx, client, i) }
	}
	return map[string]requester{
		webreport.Kept:  of(&http.Transport{Protocols: protocols((*http.Protocols).SetHTTP1)}),
		webreport.Fresh: of(&http.Transport{Protocols: protocols((*http.Protocols).SetHTTP1), DisableKeepAlives: true}),
		webreport.HTTP2: of(&http.Transport{Protocols: protocols((*http.Protocols).SetHTTP2)}),
	}
}

const (
	maxIdle = 100
	// postInterval is the interval of requests with a body, which cannot be repeated.
	postInterval = 4
	postBody     = "what may be sent once only"
)

func (v *webClient) request(ctx context.Context, client *http.Client, i int) (string, error) {
	method, path, body := http.MethodGet, "/", io.Reader(http.NoBody)
	if i%postInterval == 0 {
		// MultiReader hides that the body could be rewound.
		method, path, body = http.MethodPost, "/repeat", io.MultiReader(strings.NewReader(postBody))
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+v.config.host+path, body)
	if err != nil {
		return "", err
	}
	if method == http.MethodPost {
		request.ContentLength = int64(len(postBody))
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: answer is %s", method, response.Status)
	}
	var from message
	if err := json.Unmarshal(content, &from); err != nil {
		return "", fmt.Errorf("decode answer %q: %w", content, err)
	}
	if method == http.MethodPost && from.Text != postBody {
		return "", fmt.Errorf("%q was posted and %q arrived", postBody, from.Text)
	}
	return from.Pod, nil
}
