// SPDX-License-Identifier: Apache-2.0

package nack

import (
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/millrace-lb/millrace/gateway/distribution"
	"github.com/millrace-lb/millrace/gateway/distribution/server"
)

func proxy(pod string, acknowledged uint64, refused string) server.Proxy {
	found := server.Proxy{Identity: server.Identity{Pod: pod}, Sent: "5-ab", Refusal: refused}
	if acknowledged > 0 {
		found.Acknowledged = distribution.NewVersion(acknowledged, []byte{1})
	}
	return found
}

func refuses(pod, version, message string) Rejection {
	return Rejection{Proxy: pod, Version: version, Message: message}
}

func TestDecide(t *testing.T) {
	none, a, b := Rejection{}, refuses("n/a", "5-ab", "bad"), refuses("n/b", "5-ab", "bad")
	earlier := refuses("n/a", "4-ab", "bad")
	for name, test := range map[string]struct {
		written Rejection
		proxies []server.Proxy
		gone    bool
		want    Rejection
	}{
		"nothing":                                    {none, []server.Proxy{proxy("n/a", 1, "")}, false, none},
		"one proxy rejects":                          {none, []server.Proxy{proxy("n/b", 1, "bad"), proxy("n/a", 2, "")}, false, b},
		"two proxies reject":                         {none, []server.Proxy{proxy("n/b", 1, "bad"), proxy("n/a", 1, "bad")}, false, a},
		"already recorded":                           {a, []server.Proxy{proxy("n/a", 1, "bad")}, false, a},
		"recorded for an older version":              {earlier, []server.Proxy{proxy("n/a", 1, "bad")}, false, earlier},
		"rejection changed":                          {a, []server.Proxy{proxy("n/a", 5, "worse")}, false, refuses("n/a", "5-ab", "worse")},
		"rejection resolved":                         {a, []server.Proxy{proxy("n/a", 5, "")}, false, none},
		"resolved, another proxy rejects":            {a, []server.Proxy{proxy("n/a", 5, ""), proxy("n/b", 1, "bad")}, false, b},
		"connected from another controller replica":  {a, []server.Proxy{proxy("n/a", 0, "")}, false, a},
		"disconnected to another controller replica": {a, []server.Proxy{proxy("n/a", 4, "")}, false, a},
		"connected to another controller replica":    {a, []server.Proxy{proxy("n/b", 5, "")}, false, a},
		"proxy deleted":                              {a, []server.Proxy{proxy("n/b", 5, "")}, true, none},
		"proxy deleted, another one rejects":         {a, []server.Proxy{proxy("n/b", 1, "bad")}, true, b},
	} {
		if got := nextRejection(test.written, test.proxies, func(string) bool { return !test.gone }); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v; want %+v", name, got, test.want)
		}
	}
}

func TestRead(t *testing.T) {
	deployment := &appsv1.Deployment{}
	for text, want := range map[string]Rejection{
		"": {}, "text": {}, `{"proxy":"n/a","version":"5-ab","message":"bad"}`: refuses("n/a", "5-ab", "bad"),
	} {
		deployment.Annotations = map[string]string{Annotation: text}
		if got := Read(deployment); !reflect.DeepEqual(got, want) {
			t.Errorf("Read(%q) = %+v; want %+v", text, got, want)
		}
	}
}
