// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// bootIDFile has a UUID that the kernel makes at each boot (proc_sys_kernel(5)).
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// BootID returns the name of the node's present boot.
func BootID() (string, error) {
	content, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "", fmt.Errorf("read the name of this boot: %w", err)
	}
	id := strings.TrimSpace(string(content))
	if id == "" {
		return "", fmt.Errorf("read the name of this boot: %s is empty", bootIDFile)
	}
	return id, nil
}

// serves reports whether the other nodes may send packets to the node: it forwards by its
// maps, and the programs are attached. A single frontend whose write fails keeps it from
// serving that frontend, not the others.
func (o *Observation) serves() bool {
	return o.Forwards &&
		meta.IsStatusConditionTrue(conditions(*o), millracev1beta1.ConditionAttached)
}

// identify returns the status that an LBNode should have in a boot, given the one it
// has. A node that has served in its present boot is served to whatever fails later.
//
// Where the node can answer for VIPs stays until its agent knows.
func identify(previous millracev1beta1.LBNodeStatus, bootID string, serves bool, o *Observation) millracev1beta1.LBNodeStatus {
	status := identifyBoot(previous, bootID, serves)
	status.L2 = previous.L2
	if o != nil && o.L2Known {
		status.L2 = o.L2
	}
	return status
}

func identifyBoot(previous millracev1beta1.LBNodeStatus, bootID string, serves bool) millracev1beta1.LBNodeStatus {
	switch {
	case serves:
		return millracev1beta1.LBNodeStatus{BootID: bootID, ServingBootID: bootID}
	case previous.BootID == bootID:
		return previous
	case previous.BootID == "" && previous.ServingBootID == "":
		// It never served, which is what the empty status says.
		return previous
	default:
		return millracev1beta1.LBNodeStatus{BootID: bootID, ServingBootID: previous.ServingBootID}
	}
}

// TellBoot has the LBNode of a node say that the node has booted, if it has: until
// its agent is up the other nodes then send it nothing. It tries until that is written,
// and returns early where there is nothing to tell or ctx is done.
func TellBoot(ctx context.Context, client rest.Interface, nodeName, bootID string, logger logr.Logger) {
	update := Client[*millracev1beta1.LBNode](client, "lbnodes")
	for wait := interval; ; wait = min(2*wait, longestRetry) {
		err := tellBoot(ctx, client, update, nodeName, bootID)
		if err == nil || apierrors.IsNotFound(err) {
			return
		}
		if ctx.Err() == nil {
			logger.Error(err, "Other nodes are not told that this one has booted; will try again", "after", wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func tellBoot(
	ctx context.Context, client rest.Interface, update Update[*millracev1beta1.LBNode], nodeName, bootID string,
) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	lbNode := &millracev1beta1.LBNode{}
	if err := client.Get().Resource("lbnodes").Name(nodeName).Do(ctx).Into(lbNode); err != nil {
		return fmt.Errorf("get LBNode %s: %w", nodeName, err)
	}
	status := identify(lbNode.Status, bootID, false, nil)
	if equality.Semantic.DeepEqual(status, lbNode.Status) {
		return nil
	}
	lbNode.Status = status
	_, err := update(ctx, lbNode)
	return err
}
