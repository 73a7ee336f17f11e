// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// TestScenarios compiles the objects in the files of testdata and compares the results and the handling
// of requests:
//
//	-- objects --   YAML
//	-- requests --  OWNER [METHOD] URL [NAME: VALUE]… => ANSWER, one a line
//	-- filters --   OWNER [METHOD] URL [NAME: VALUE]… => EFFECT; EFFECT…, one a line
//	-- ingresses -- NAMESPACE/NAME OWNER PORT[:ERROR]…, sorted; all of them
//	-- certificates -- OWNER HOST NAMESPACE/NAME…, in the order of preference; HOST may be "all"
//	-- problems --  KIND NAMESPACE/NAME FIELD REASON, sorted; all of them
//	-- status --    OBJECT [PARENT or LISTENER] CONDITION=STATUS/REASON…; a selection
//	-- frontends -- GATEWAY LISTENER PORT/PROTOCOL SERVICE:PORT*WEIGHT…; all of them
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), ".txtar"), func(t *testing.T) {
			play(t, file)
		})
	}
}

func play(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var result *model.Result
	wanted := map[string][]string{"problems": {}}
	for _, part := range txtar.Parse(text).Files {
		if part.Name == "objects" {
			result = route.Compile(parse(t, file, part.Data), model.DefaultSettings())
			continue
		}
		wanted[part.Name] = lines(part.Data)
	}
	if result == nil {
		t.Fatal("the scenario has no objects")
	}
	for name, lines := range wanted {
		check, known := checks[name]
		if !known {
			t.Fatalf("no section %q", name)
		}
		check(t, result, lines)
	}
}

var checks = map[string]func(*testing.T, *model.Result, []string){
	"requests":     checkRequests,
	"certificates": checkCertificates,
	"filters":      checkFilters,
	"status":       checkStatuses,
	"problems":     checkAll(problems),
	"ingresses":    checkAll(ingresses),
	"frontends":    checkAll(frontends),
}

func checkAll(display func(*model.Result) []string) func(*testing.T, *model.Result, []string) {
	return func(t *testing.T, result *model.Result, wanted []string) {
		if diff := cmp.Diff(wanted, display(result)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

func checkRequests(t *testing.T, result *model.Result, wanted []string) {
	for _, line := range wanted {
		request, want, found := strings.Cut(line, "=>")
		if !found {
			t.Fatalf("line %q without =>", line)
		}
		if got := answer(t, result, strings.TrimSpace(request)); got != strings.TrimSpace(want) {
			t.Errorf("%s\n   is %s\nwant %s", request, got, strings.TrimSpace(want))
		}
	}
}

func checkCertificates(t *testing.T, result *model.Result, wanted []string) {
	for _, line := range wanted {
		if got := certificates(result, line); got != line {
			t.Errorf("certificates = %s, want %s", got, line)
		}
	}
}

// parse parses the objects of a scenario and the common objects of its directory.
func parse(t *testing.T, file string, text []byte) *model.Objects {
	t.Helper()
	common, err := os.ReadFile(filepath.Join(filepath.Dir(file), "common.yaml"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	objects, err := routetest.Parse(append(append(common, "\n---\n"...), text...))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func lines(text []byte) []string {
	found := []string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && line[0] != '#' {
			found = append(found, line)
		}
	}
	return found
}

func problems(result *model.Result) []string {
	found := []string{}
	for _, problem := range result.Problems {
		found = append(found, fmt.Sprintf("%s %s/%s %s %s",
			problem.Object.Kind, problem.Object.Namespace, problem.Object.Name, problem.Field, problem.Reason))
	}
	return found
}

func ingresses(result *model.Result) []string {
	found := []string{}
	for _, status := range result.Ingresses {
		line := fmt.Sprintf("%s/%s %s %s/%s", status.Namespace, status.Name,
			status.Owner.Kind, status.Owner.Namespace, status.Owner.Name)
		for _, port := range status.Ports {
			line += fmt.Sprintf(" %d", port.Number)
			if port.Error != "" {
				line += ":" + port.Error
			}
		}
		found = append(found, line)
	}
	return found
}

func certificates(result *model.Result, line string) string {
	fields := strings.Fields(line)[:2]
	for _, proxy := range result.Proxies {
		for _, found := range proxy.Resources {
			listener := found.GetListener()
			if proxy.Owner.Name != fields[0] || len(listener.GetCertificates()) == 0 ||
				displayHost(listener.Hostname) != strings.TrimPrefix(fields[1], "all") {
				continue
			}
			for _, name := range listener.Certificates {
				fields = append(fields, strings.TrimPrefix(name, "certificate/"))
			}
		}
	}
	return strings.Join(fields, " ")
}

func displayHost(name *resource.Hostname) string {
	if name.Wildcard != resource.Hostname_NONE {
		return "*." + name.Name
	}
	return name.Name
}

func answer(t *testing.T, result *model.Result, line string) string {
	owner, rest, _ := strings.Cut(line, " ")
	request, err := parseRequest(strings.Fields(rest))
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	for _, proxy := range result.Proxies {
		if proxy.Owner.Name == owner {
			return display(proxy.Resources, routetest.Match(proxy.Resources, request))
		}
	}
	return "no proxy"
}

func parseRequest(fields []string) (routetest.Request, error) {
	request := routetest.Request{Method: "GET", Header: map[string]string{}}
	if !strings.Contains(fields[0], "://") {
		request.Method, fields = fields[0], fields[1:]
	}
	at, err := url.Parse(fields[0])
	if err != nil {
		return request, err
	}
	request.Host, request.Path, request.Query, request.ServerName = at.Hostname(), at.Path, at.Query(), at.Hostname()
	request.Port = 80
	if at.Scheme == "https" {
		request.Port = 443
	}
	if at.Port() != "" {
		port, err := strconv.Atoi(at.Port())
		if err != nil {
			return request, err
		}
		request.Port = uint32(port)
	}
	for i := 1; i+1 < len(fields); i += 2 {
		name, value := strings.TrimSuffix(fields[i], ":"), fields[i+1]
		if name == "sni" {
			request.ServerName = value
			continue
		}
		request.Header[name] = value
	}
	return request, nil
}

func display(resources []*resource.Resource, answer routetest.Answer) string {
	switch {
	case answer.Listener == "":
		return "no listener"
	case answer.Misdirected:
		return "421"
	case answer.Rule == nil:
		return "404"
	}
	text := []string{answer.Rule.Route}
	for _, filter := range answer.Rule.Filters {
		if redirect := filter.GetRedirect(); redirect != nil {
			return fmt.Sprintf("%s %d", answer.Rule.Route, redirect.Status)
		}
	}
	for _, backend := range answer.Rule.Backends {
		text = append(text, displayBackend(resources, backend))
	}
	if len(answer.Rule.Backends) == 0 {
		text = append(text, "500")
	}
	return strings.Join(text, " ")
}

func displayBackend(resources []*resource.Resource, backend *resource.WeightedBackend) string {
	name := strings.TrimPrefix(backend.Backend, "backend/")
	if name == "" {
		name = "500"
	}
	if backend.Weight != 1 {
		name += fmt.Sprintf("*%d", backend.Weight)
	}
	for _, found := range resources {
		if found.Name != backend.Backend {
			continue
		}
		if found.GetBackend().Refuse {
			name += " refuse"
		}
		if tls := found.GetBackend().Tls; tls != nil {
			name += " tls:" + tls.Hostname
		}
	}
	return name
}
