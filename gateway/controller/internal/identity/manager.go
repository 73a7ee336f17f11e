// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// firstPeriod is the interval between reads until the Secret exists.
const firstPeriod = time.Second

// Keys of the Secret. The CA keys are followed by an index.
const (
	keyChain     = "tls.crt"
	keyKey       = "tls.key"
	keyAuthority = "ca.crt."
	keyCAKey     = "ca.key."
	// keySecret is followed by a day.
	keySecret = "secret."
)

// Manager reads and renews the identity. It reads one small object three times per LossAfter, past the cache,
// so that success proves that the API server is reachable.
type Manager struct {
	Reader client.Reader
	Writer client.Writer
	// Secret stores the identity, Names are the DNS names of the serving certificate.
	Secret types.NamespacedName
	Names  []string
	// Client stores the certificate with which clients read the metrics of proxies.
	Client types.NamespacedName
	// IsLeader reports whether this replica is the leader, which alone writes the Secret.
	IsLeader func() bool
	// Changed is called when the trusted CAs or the secrets have changed.
	Changed func()
	// LossAfter is the time without an answer after which the API server counts as lost.
	LossAfter time.Duration
	// OnLoss is called after each read and reports whether the API server is lost.
	OnLoss func(bool)
	Log    logr.Logger

	current      atomic.Pointer[active]
	lastResponse time.Time
	lost         atomic.Bool
}

type active struct {
	trusted     []byte
	certificate tls.Certificate
	secrets     [][]byte
}

// Trusted returns the trusted CAs in PEM, or "" before the first read.
func (k *Manager) Trusted() string {
	if current := k.current.Load(); current != nil {
		return string(current.trusted)
	}
	return ""
}

// Secrets returns the secrets of an owner's proxies, the sealing one first; known is false before the first
// read.
func (k *Manager) Secrets(owner string) (values [][]byte, known bool, err error) {
	current := k.current.Load()
	if current == nil {
		return nil, false, nil
	}
	values, err = derive(current.secrets, owner)
	return values, true, err
}

// GetCertificate implements tls.Config.GetCertificate.
func (k *Manager) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	current := k.current.Load()
	if current == nil {
		return nil, errors.New("there is no serving certificate yet")
	}
	return &current.certificate, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica serves.
func (k *Manager) NeedLeaderElection() bool { return false }

// Start reads and renews the identity until the context ends.
func (k *Manager) Start(ctx context.Context) error {
	k.lastResponse = time.Now()
	for {
		if err := k.step(ctx, time.Now()); err != nil && ctx.Err() == nil {
			k.Log.Error(err, "renew the controller's identity", "secret", k.Secret.String())
		}
		k.updateLost(time.Now())
		wait := k.LossAfter / 3
		if k.current.Load() == nil {
			wait = min(wait, firstPeriod)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// IsLost reports whether the API server is lost, so that cached objects may be stale.
func (k *Manager) IsLost() bool { return k.lost.Load() }

func (k *Manager) updateLost(now time.Time) {
	lost := now.Sub(k.lastResponse) > k.LossAfter
	switch before := k.lost.Swap(lost); {
	case lost && !before:
		k.Log.Info("the API server is unreachable, disconnecting proxies", "since", k.lastResponse)
	case before && !lost:
		k.Log.Info("the API server is reachable again")
	}
	k.OnLoss(lost)
}

// clientName is the name in the client certificate.
const clientName = "metrics.proxy.millrace.io"

func (k *Manager) step(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, k.LossAfter/6)
	defer cancel()
	secret := &corev1.Secret{}
	err := k.Reader.Get(ctx, k.Secret, secret)
	missing := apierrors.IsNotFound(err)
	if err == nil || missing {
		k.lastResponse = time.Now()
	}
	if err != nil && !missing {
		return fmt.Errorf("read the Secret: %w", err)
	}
	bundle := read(secret.Data)
	if k.IsLeader() {
		renewed, changed, err := bundle.Renew(now, k.Names)
		if err != nil {
			return err
		}
		if changed {
			secret.Data = data(renewed)
			if missing {
				secret.ObjectMeta = metav1.ObjectMeta{Namespace: k.Secret.Namespace, Name: k.Secret.Name}
				secret.Type = corev1.SecretTypeOpaque
			}
			if err := k.write(ctx, secret, missing); err != nil {
				return err
			}
			bundle = renewed
		}
		return errors.Join(k.serve(bundle, now), k.renewClient(ctx, bundle, now))
	} else if missing {
		return nil
	}
	return k.serve(bundle, now)
}

func (k *Manager) renewClient(ctx context.Context, bundle Bundle, now time.Time) error {
	secret := &corev1.Secret{}
	err := k.Reader.Get(ctx, k.Client, secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("read the Secret %s: %w", k.Client, err)
	}
	pair := Pair{Chain: secret.Data[keyChain], Key: secret.Data[keyKey]}
	pair, changed, err := bundle.RenewClient(pair, now, []string{clientName})
	if err != nil || !changed {
		return err
	}
	secret.Data = map[string][]byte{keyChain: pair.Chain, keyKey: pair.Key}
	if missing {
		secret.ObjectMeta = metav1.ObjectMeta{Namespace: k.Client.Namespace, Name: k.Client.Name}
		secret.Type = corev1.SecretTypeTLS
	}
	return k.write(ctx, secret, missing)
}

// write fails if the Secret changed since it was read.
func (k *Manager) write(ctx context.Context, secret *corev1.Secret, missing bool) error {
	if missing {
		if err := k.Writer.Create(ctx, secret); err != nil {
			return fmt.Errorf("create the Secret: %w", err)
		}
		return nil
	}
	if err := k.Writer.Update(ctx, secret); err != nil {
		return fmt.Errorf("update the Secret: %w", err)
	}
	return nil
}

func (k *Manager) serve(bundle Bundle, now time.Time) error {
	certificate, err := tls.X509KeyPair(bundle.Chain, bundle.Key)
	if err != nil {
		return fmt.Errorf("load the serving certificate: %w", err)
	}
	current := &active{trusted: bundle.Trusted(), certificate: certificate, secrets: inUse(bundle.Secrets, now)}
	before := k.current.Swap(current)
	if before == nil || !bytes.Equal(before.trusted, current.trusted) || !slices.EqualFunc(before.secrets, current.secrets, bytes.Equal) {
		k.Changed()
	}
	return nil
}

func read(data map[string][]byte) Bundle {
	bundle := Bundle{Pair: Pair{Chain: data[keyChain], Key: data[keyKey]}}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if day, is := strings.CutPrefix(key, keySecret); is && len(data[key]) == secretLength {
			bundle.Secrets = append(bundle.Secrets, Secret{day, data[key]})
		}
	}
	for i := 0; ; i++ {
		number := strconv.Itoa(i)
		certificate, found := data[keyAuthority+number]
		if !found {
			return bundle
		}
		bundle.Authorities = append(bundle.Authorities, Authority{Certificate: certificate, Key: data[keyCAKey+number]})
	}
}

func data(bundle Bundle) map[string][]byte {
	all := map[string][]byte{keyChain: bundle.Chain, keyKey: bundle.Key}
	for i, authority := range bundle.Authorities {
		all[keyAuthority+strconv.Itoa(i)] = authority.Certificate
		all[keyCAKey+strconv.Itoa(i)] = authority.Key
	}
	for _, secret := range bundle.Secrets {
		all[keySecret+secret.Day] = secret.Value
	}
	return all
}
