// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/util/cert"
)

type certificate struct{ chain, key string }

func newCertificate(names ...string) (certificate, error) {
	chain, key, err := cert.GenerateSelfSignedCertKey(names[0], nil, names[1:])
	return certificate{string(chain), string(key)}, err
}

func (c certificate) secret(name string) string {
	encode := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	return fmt.Sprintf(`---
apiVersion: v1
kind: Secret
metadata: {name: %s, namespace: default}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
`, name, encode(c.chain), encode(c.key))
}

func (d *demo) certificates(ctx context.Context) error {
	shop, err := newCertificate("shop.example.com", "*.example.com")
	if err != nil {
		return err
	}
	pay, err := newCertificate("pay.internal.example.com")
	if err != nil {
		return err
	}
	d.authority = shop.chain
	d.trusted = filepath.Join(d.cluster.Root(), ".lab", "demo-ca.crt")
	if err := os.WriteFile(d.trusted, []byte(shop.chain), 0o644); err != nil {
		return err
	}
	authority := fmt.Sprintf(`---
apiVersion: v1
kind: ConfigMap
metadata: {name: pay-ca, namespace: default}
data: {ca.crt: %q}
`, pay.chain)
	return d.cluster.Apply(ctx, shop.secret("shop-tls")+shop.secret("edge-tls")+pay.secret("pay-tls")+authority)
}
