// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func version(i int) (Update, map[string]string) {
	name := fmt.Sprintf("backend-%d", i)
	return Update{Version: fmt.Sprint(i), Resources: map[string]*resource.Resource{
		name: {Name: name, Kind: &resource.Resource_Backend{Backend: &resource.Backend{Endpoints: "e"}}},
	}}, map[string]string{name: "v" + fmt.Sprint(i)}
}

// TestKeeper: the first version is kept at once, and the newest one at the end, however many
// came in between.
func TestKeeper(t *testing.T) {
	store := &Store{Path: filepath.Join(t.TempDir(), "kept")}
	keeper := newKeeper(store, slog.New(slog.DiscardHandler))
	stop := make(chan struct{})
	go keeper.run(stop)
	keeper.keep(version(1))
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if kept, err := store.Load(); err != nil {
			t.Fatal(err)
		} else if kept != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the first version is not kept")
		}
	}
	for i := 2; i <= 50; i++ {
		keeper.keep(version(i))
	}
	close(stop)
	<-keeper.done
	kept, err := store.Load()
	if err != nil {
		t.Fatal(err)
	}
	want, versions := version(50)
	resources, got := map[string]*resource.Resource{}, map[string]string{}
	if err := merge(resources, got, kept); err != nil {
		t.Fatal(err)
	}
	if kept.GetSystemVersionInfo() != want.Version || len(resources) != 1 || got["backend-50"] != versions["backend-50"] ||
		!proto.Equal(resources["backend-50"], want.Resources["backend-50"]) {
		t.Errorf("kept version %s with %v", kept.GetSystemVersionInfo(), resources)
	}
}
