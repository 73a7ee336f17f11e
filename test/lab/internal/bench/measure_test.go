// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	samples := []sample{{3, 10, 7}, {1, 30, 8}, {2, 20, 9}}
	if got, want := median(samples), (sample{offered: 2, delivered: 20, cpu: 8}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestPrint(t *testing.T) {
	var out strings.Builder
	b := &bench{options: Options{Rounds: 3, Duration: time.Second, Flows: 10, Rate: 1000}, out: &out}
	err := b.print([]result{
		{path: path{name: "router"}, most: sample{offered: 500000}, steady: sample{cpu: 2}},
		{path{"kube-proxy", externalIP, sinkNode}, sample{offered: 300000, delivered: 100000}, sample{cpu: 10}},
		{path{"Millrace", externalIP, sinkNode}, sample{offered: 300000, delivered: 150000}, sample{cpu: 6}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := "delivers 1.50 times the packets of kube-proxy, for 0.50 times the processor time"; !strings.Contains(out.String(), want) {
		t.Errorf("%s\ndoes not say %q", &out, want)
	}
}

func TestBusySecondsGrow(t *testing.T) {
	before, err := busySeconds()
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		after, err := busySeconds()
		if err != nil {
			t.Fatal(err)
		}
		if after > before {
			return
		}
	}
	t.Error("this loop took no processor time")
}
