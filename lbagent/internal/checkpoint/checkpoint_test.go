// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const (
	boot = "this-boot"
	node = "node1"
)

func example() State {
	meta := metav1.ObjectMeta{
		Namespace: "default", Name: "web", UID: "u", Generation: 3,
		CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Local()),
	}
	ready := true
	return State{
		Objects: &model.Snapshot{
			NodeName: node,
			Node:     &corev1.Node{ObjectMeta: meta},
			Services: []*corev1.Service{{ObjectMeta: meta, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}},
			EndpointSlices: []*discoveryv1.EndpointSlice{{ObjectMeta: meta, Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{"198.18.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			}}}},
			VIPs:    []*millracev1beta1.VIP{{ObjectMeta: meta, Spec: millracev1beta1.VIPSpec{Address: "203.0.113.1"}}},
			Pools:   []*millracev1beta1.VIPPool{{ObjectMeta: meta}},
			LBNodes: []*millracev1beta1.LBNode{{ObjectMeta: meta, Status: millracev1beta1.LBNodeStatus{BootID: boot}}},
			Peers: []*millracev1beta1.LBPeer{{ObjectMeta: meta, Spec: millracev1beta1.LBPeerSpec{
				HoldTime: &metav1.Duration{Duration: 9 * time.Second},
			}}},
			Advertisements: []*millracev1beta1.VIPAdvertisement{{ObjectMeta: meta}},
			Routes:         []*millracev1beta1.VIPRoute{{ObjectMeta: meta}},
			Passwords:      map[string]string{"tor": "\x00\xffnot text"},
		},
		Generations: []uint32{17, 18},
		Nodes: []membership.Known{
			{ID: 2, Address: netip.MustParseAddr("198.51.100.2")},
			{ID: 3, Address: netip.MustParseAddr("2001:db8::3"), Lost: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Settled: true},
		},
	}
}

func memory(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	if err := unix.Mount("tmpfs", directory, "tmpfs", 0, "mode=0700"); err != nil {
		t.Skipf("mount a tmpfs (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, 0); err != nil {
			t.Errorf("unmount %s: %v", directory, err)
		}
	})
	return filepath.Join(directory, "state")
}

func TestStore(t *testing.T) {
	directory := memory(t)
	store, err := Open(directory, boot, node)
	if err != nil {
		t.Fatal(err)
	}
	if state, err := store.Load(); state != nil || err != nil {
		t.Errorf("empty directory: Load = %v, error %v", state, err)
	}
	if err := os.WriteFile(filepath.Join(directory, name+".new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := store.Save(example()); err != nil {
			t.Fatal(err)
		}
	}
	state, err := store.Load()
	if err != nil {
		t.Fatal(err)
	}
	if want := example(); !equality.Semantic.DeepEqual(want.Objects, state.Objects) || !slices.Equal(want.Generations, state.Generations) ||
		!slices.Equal(want.Nodes, state.Nodes) {
		t.Errorf("saved %+v, loaded %+v", want, *state)
	}
	info, err := os.Stat(filepath.Join(directory, name))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the file has mode %v, error %v; want 0600", info.Mode(), err)
	}
	if err := Remove(directory); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(directory); !os.IsNotExist(err) {
		t.Errorf("state was not removed completely: %v", err)
	}
	if err := Remove(directory); err != nil {
		t.Errorf("Remove of a missing directory: %v", err)
	}
}

// TestStoreFull checks that without room the previous checkpoint remains, and no partial file uses space.
func TestStoreFull(t *testing.T) {
	directory := memory(t)
	store, err := Open(directory, boot, node)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Save(example()); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", filepath.Dir(directory), "", unix.MS_REMOUNT, "size=64k"); err != nil {
		t.Fatal(err)
	}
	larger := example()
	larger.Objects.Passwords["leaf"] = strings.Repeat("x", 128<<10)
	for range 2 {
		if err := store.Save(larger); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("Save on a full file system: %v, want ENOSPC", err)
		}
		if entries, err := os.ReadDir(directory); err != nil || len(entries) != 1 || entries[0].Name() != name {
			t.Errorf("directory entries %v: %v", entries, err)
		}
	}
	if state, err := store.Load(); err != nil || !equality.Semantic.DeepEqual(example().Objects, state.Objects) {
		t.Errorf("Load = %+v, error %v, want the previous state", state, err)
	}
	if err := unix.Mount("", filepath.Dir(directory), "", unix.MS_REMOUNT, "size=1m"); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(larger); err != nil {
		t.Errorf("Save after space was freed: %v", err)
	}
}

func TestStoreLater(t *testing.T) {
	directory := memory(t)
	if err := os.WriteFile(directory, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := Open(directory, boot, node)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Save(example()); err == nil {
		t.Error("Save succeeded although the directory is a file")
	}
	if err := os.Remove(directory); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(example()); err != nil {
		t.Error(err)
	}
}

// TestMemoryOnly checks that passwords are not written to a disk, and that a checkpoint is not valid
// after a reboot.
func TestMemoryOnly(t *testing.T) {
	directory, err := os.MkdirTemp(".", "disk")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(directory)
	var system unix.Statfs_t
	if err := unix.Statfs(directory, &system); err != nil || system.Type == unix.TMPFS_MAGIC {
		t.Skip("the source tree is on a tmpfs")
	}
	if _, err := Open(directory, boot, node); err == nil || !strings.Contains(err.Error(), "tmpfs") {
		t.Errorf("directory on a disk: error %v, want one about tmpfs", err)
	}
}

func TestDecode(t *testing.T) {
	good, err := encode(example(), boot)
	if err != nil {
		t.Fatal(err)
	}
	sealed := func(body string) []byte { return []byte(header + sum([]byte(body)) + "\n" + body) }
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)/2] ^= 1
	for what, test := range map[string]struct {
		file       []byte
		boot, node string
		want       string
	}{
		"good":             {good, boot, node, ""},
		"empty":            {nil, boot, node, "another version"},
		"version 2":        {[]byte(strings.Replace(string(good), "objects 1", "objects 2", 1)), boot, node, "another version"},
		"header only":      {good[:len(header)], boot, node, "truncated"},
		"truncated":        {good[:len(good)-1], boot, node, "truncated"},
		"flipped bit":      {flipped, boot, node, "damaged"},
		"invalid JSON":     {sealed("{"), boot, node, "decode"},
		"other boot ID":    {good, "next-boot", node, "boot"},
		"other node":       {good, boot, "node2", `node "node1"`},
		"null object":      {sealed(`{"BootID":"` + boot + `","NodeName":"` + node + `","Services":[null]}`), boot, node, "null"},
		"newer field":      {sealed(`{"BootID":"` + boot + `","NodeName":"` + node + `","Later":1}`), boot, node, ""},
		"invalid checksum": {[]byte(header + "\n{}"), boot, node, "damaged"},
	} {
		t.Run(what, func(t *testing.T) {
			state, err := decode(test.file, test.boot, test.node)
			if (err == nil) != (test.want == "") || (err == nil) != (state != nil) {
				t.Fatalf("error %v, want one with %q", err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
			if err == nil && state.Objects.Passwords == nil {
				t.Error("Passwords is nil")
			}
		})
	}
}

// FuzzDecode checks that any content with a valid checksum is an error, or has objects that a model can
// be built of.
func FuzzDecode(f *testing.F) {
	good, err := encode(example(), boot)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[strings.Index(string(good), "\n")+1:])
	f.Add([]byte(`{"BootID":"this-boot","NodeName":"node1","LBNodes":[{}],"Services":[{}]}`))
	f.Fuzz(func(_ *testing.T, body []byte) {
		_, _ = decode(body, boot, node)
		state, err := decode(append([]byte(header+sum(body)+"\n"), body...), boot, node)
		if err == nil {
			model.Build(state.Objects)
		}
	})
}
