// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/internal/program"
)

const checkInterval = 2 * time.Second

// runCheck runs the test of the Helm chart: it waits until a session is established and the address of a
// Service is announced.
func runCheck(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	flags := program.Flags("operator check", stderr)
	timeout := flags.Duration("timeout", 2*time.Minute, "time limit")
	program.RegisterKubeconfig(flags, config.RegisterFlags)
	if done, err := program.Parse(flags, arguments, version, stdout); done || err != nil {
		return err
	}
	rest, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("configure the API client: %w: run in a cluster or set --kubeconfig", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), millracev1beta1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("create the API client: %w", err)
	}
	reader, err := client.New(rest, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("create the API client: %w", err)
	}
	var result string
	var failure error
	err = wait.PollUntilContextTimeout(ctx, checkInterval, *timeout, true, func(ctx context.Context) (bool, error) {
		result, failure = check(ctx, reader)
		return failure == nil, nil
	})
	if err != nil {
		return fmt.Errorf("after %s: %w", *timeout, errors.Join(failure, err))
	}
	_, err = fmt.Fprintln(stdout, result)
	return err
}

// check returns a message that names an established session and an announced Service, or an error. Without
// LBPeers, VIPs can only be announced on layer 2, so no session is required.
func check(ctx context.Context, reader client.Reader) (string, error) {
	peers, services := &millracev1beta1.LBPeerList{}, &corev1.ServiceList{}
	if err := reader.List(ctx, peers); err != nil {
		return "", fmt.Errorf("list LBPeers: %w", err)
	}
	if err := reader.List(ctx, services); err != nil {
		return "", fmt.Errorf("list Services: %w", err)
	}
	session := "there is no LBPeer"
	if len(peers.Items) > 0 {
		at := slices.IndexFunc(peers.Items, func(peer millracev1beta1.LBPeer) bool {
			return peer.Status.Sessions != nil && peer.Status.Sessions.Established > 0
		})
		if at < 0 {
			return "", fmt.Errorf("none of %d LBPeers has an established session", len(peers.Items))
		}
		peer := &peers.Items[at]
		session = fmt.Sprintf("LBPeer %s has %d established sessions", peer.Name, peer.Status.Sessions.Established)
	}
	at := slices.IndexFunc(services.Items, func(service corev1.Service) bool {
		return meta.IsStatusConditionTrue(service.Status.Conditions, millracev1beta1.ConditionServiceAnnounced)
	})
	if at < 0 {
		return "", errors.New("no Service has the condition " + millracev1beta1.ConditionServiceAnnounced +
			": create a Service with loadBalancerClass " + millracev1beta1.Class)
	}
	service := &services.Items[at]
	return fmt.Sprintf("%s; the addresses of Service %s/%s can be announced", session, service.Namespace, service.Name), nil
}
