// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/url"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
)

// newEtcdCommand returns a command that runs a single etcd member without fsync, because its data is only
// needed while the lab runs.
func newEtcdCommand() *cobra.Command {
	var dir, listen string
	command := &cobra.Command{
		Use:           "etcd",
		Short:         "Run one etcd member in this process",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(*cobra.Command, []string) error {
			return runEtcd(dir, listen)
		},
	}
	command.Flags().StringVar(&dir, "dir", "", "data directory")
	command.Flags().StringVar(&listen, "listen", "http://127.0.0.1:2379", "client URL to serve")
	return command
}

func runEtcd(dir, listen string) error {
	client, err := url.Parse(listen)
	if err != nil {
		return fmt.Errorf("parse --listen %q: %w", listen, err)
	}
	config := embed.NewConfig()
	config.Dir = dir
	config.LogLevel = "error"
	config.UnsafeNoFsync = true
	config.ListenClientUrls = []url.URL{*client}
	config.AdvertiseClientUrls = []url.URL{*client}
	config.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}

	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("start etcd in %s: %w", dir, err)
	}
	defer server.Close()
	return <-server.Err()
}
