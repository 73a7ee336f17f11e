// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// transferReport is the output of fetch and upload. SHA256 is the sum of received bytes, Want of sent or
// expected bytes.
type transferReport struct {
	Bytes   int64   `json:"bytes"`
	SHA256  string  `json:"sha256"`
	Want    string  `json:"want"`
	Seconds float64 `json:"seconds"`
}

func transferClient(timeout time.Duration) *http.Client {
	client := newClient(1, false)
	client.Timeout = timeout
	return client
}

// fetch compares a body's sum with the wanted one, by default the pattern of the URL's n and seed.
func fetch(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("fetch", flag.ContinueOnError)
	from := flags.String("url", "", "what to get, such as http://address/bytes?n=1000&seed=1")
	want := flags.String("sha256", "", "hexadecimal sum to expect (default: from the URL's n and seed)")
	timeout := flags.Duration("timeout", time.Minute, "when to give it up")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *want == "" {
		var err error
		if *want, err = patternSum(*from); err != nil {
			return err
		}
	}
	start := time.Now()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, *from, nil)
	if err != nil {
		return err
	}
	response, err := transferClient(*timeout).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: answer is %s", *from, response.Status)
	}
	got, err := sumOf(response.Body)
	if err != nil {
		return fmt.Errorf("get %s: %w", *from, err)
	}
	return finishTransfer(stdout, start, got, *want)
}

func patternSum(address string) (string, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	query := parsed.Query()
	count, err := strconv.ParseInt(query.Get("n"), 10, 64)
	if err != nil {
		return "", fmt.Errorf("parameter n of %s: %w: give it, or --sha256", address, err)
	}
	seed, err := strconv.ParseInt(query.Get("seed"), 10, 64)
	if err != nil {
		return "", fmt.Errorf("parameter seed of %s: %w: give it, or --sha256", address, err)
	}
	expected, err := sumOf(newPattern(seed, count))
	return expected.SHA256, err
}

func upload(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("upload", flag.ContinueOnError)
	to := flags.String("url", "", "where to post it, such as http://address/sum")
	count := flags.Int64("bytes", 1<<20, "how much to post")
	seed := flags.Int64("seed", 1, "which bytes to post")
	timeout := flags.Duration("timeout", time.Minute, "when to give it up")
	if err := parse(flags, args); err != nil {
		return err
	}
	start := time.Now()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, *to, newPattern(*seed, *count))
	if err != nil {
		return err
	}
	request.ContentLength = *count
	response, err := transferClient(*timeout).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("post to %s: answer is %s: %s", *to, response.Status, body)
	}
	var got sum
	if err := json.Unmarshal(body, &got); err != nil {
		return fmt.Errorf("decode answer %q: %w", body, err)
	}
	expected, err := sumOf(newPattern(*seed, *count))
	if err != nil {
		return err
	}
	return finishTransfer(stdout, start, got, expected.SHA256)
}

func finishTransfer(stdout io.Writer, start time.Time, got sum, want string) error {
	err := printJSON(stdout, transferReport{
		Bytes: got.Bytes, SHA256: got.SHA256, Want: want, Seconds: time.Since(start).Seconds(),
	})
	if err == nil && got.SHA256 != want {
		return errFailed
	}
	return err
}
