// SPDX-License-Identifier: Apache-2.0

package loadtest

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// dearest is a bcrypt hash with the highest cost that a proxy supports.
const dearest = "$2y$12$abcdefghijklmnopqrstuuAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

func protected() (*resource.Rule, *resource.Resource) {
	rule := rule("/password", "backend")
	rule.Filters = []*resource.Filter{{Kind: &resource.Filter_BasicAuthentication{
		BasicAuthentication: &resource.BasicAuthentication{Users: "users"}}}}
	return rule, &resource.Resource{Name: "users", Kind: &resource.Resource_Users{
		Users: &resource.Users{Htpasswd: []byte("admin:" + dearest)}}}
}

// guess sends requests with wrong passwords until the end of its duration, one after the other.
func guess(index int) error {
	conn, err := dial(index, "http/1.1")
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	answers := bufio.NewReader(conn)
	for end := time.Now().Add(*lasting); time.Now().Before(end); {
		request, err := http.NewRequest(http.MethodGet, "https://"+hostname+"/password", nil)
		if err != nil {
			return err
		}
		request.SetBasicAuth("admin", fmt.Sprint(index, requests.Add(1)))
		if err := request.Write(conn); err != nil {
			return err
		}
		response, err := http.ReadResponse(answers, request)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, response.Body)
		if response.StatusCode != http.StatusUnauthorized {
			refused.Add(1)
			// Without a pause the attacker would only compete with the proxy for the CPU.
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}
