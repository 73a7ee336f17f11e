// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// Refused is a kind that the user may not read, or that the API server does not serve.
type Refused struct {
	Kind string
	Err  error
}

// rightsRetry is the retry interval of refused kinds.
const rightsRetry = time.Minute

// errRights ends a watch after a change of permissions.
var errRights = errors.New("the rights have changed")

// WatchAllowed calls each with the readable part of a report's input and the refused kinds, at once and
// after changes with pauses of rest, until ctx is done or each returns an error. Errors that concern a
// single kind do not end it.
func WatchAllowed(ctx context.Context, config Config, rest time.Duration, each func(*report.Input, []Refused) error) error {
	for {
		err := watchAllowed(ctx, config, rest, each)
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.Is(err, errRights):
			return err
		}
	}
}

func watchAllowed(ctx context.Context, config Config, rest time.Duration, each func(*report.Input, []Refused) error) error {
	w := &watcher{config: config, changed: make(chan struct{}, 1)}
	restConfig, reader, err := config.client()
	if err != nil {
		return err
	}
	kinds, refused, err := allowed(ctx, reader, config.Namespace)
	if err != nil {
		return config.explain(restConfig.Host, err)
	}
	if err := w.open(); err != nil {
		return err
	}
	group, watching := errgroup.WithContext(ctx)
	group.Go(func() error { return w.cache.Start(watching) })
	group.Go(func() error {
		select {
		case err := <-w.refusal:
			// Permissions may flap: pause between attempts.
			_ = wait(watching, rest)
			return fmt.Errorf("%w: %w", errRights, err)
		case <-watching.Done():
			return watching.Err()
		}
	})
	group.Go(func() error { return awaitPermissions(watching, reader, config.Namespace, refused) })
	group.Go(func() error {
		if err := w.follow(watching, kinds); err != nil {
			return err
		}
		return repeat(watching, w.changed, func(time.Duration) time.Duration { return rest }, func() error {
			in, err := w.read(watching, kinds)
			if err != nil {
				return err
			}
			return each(in, refused)
		})
	})
	return group.Wait()
}

// awaitPermissions returns errRights once a refused kind can be read.
func awaitPermissions(ctx context.Context, reader client.Reader, namespace string, refused []Refused) error {
	if len(refused) == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	for {
		if err := wait(ctx, rightsRetry); err != nil {
			return err
		}
		if _, now, err := allowed(ctx, reader, namespace); err == nil && len(now) < len(refused) {
			return errRights
		}
	}
}

type inputKind struct {
	plural string
	object client.Object
	list   func() client.ObjectList
	put    func(client.ObjectList, *report.Input)
	// own is true if only objects in Millrace's namespace are read.
	own bool
}

func kindOf[L any, P interface {
	*L
	client.ObjectList
}](plural string, object client.Object, put func(P, *report.Input)) inputKind {
	return inputKind{
		plural: plural, object: object, list: func() client.ObjectList { return P(new(L)) },
		put: func(list client.ObjectList, in *report.Input) { put(list.(P), in) },
	}
}

func inputKinds() []inputKind {
	pods := kindOf("pods", &corev1.Pod{}, func(l *corev1.PodList, in *report.Input) { in.Pods = l.Items })
	pods.own = true
	return []inputKind{
		kindOf("vippools", &millracev1beta1.VIPPool{}, func(l *millracev1beta1.VIPPoolList, in *report.Input) { in.Pools = l.Items }),
		kindOf("vips", &millracev1beta1.VIP{}, func(l *millracev1beta1.VIPList, in *report.Input) { in.VIPs = l.Items }),
		kindOf("lbpeers", &millracev1beta1.LBPeer{}, func(l *millracev1beta1.LBPeerList, in *report.Input) { in.Peers = l.Items }),
		kindOf("vipadvertisements", &millracev1beta1.VIPAdvertisement{}, func(l *millracev1beta1.VIPAdvertisementList, in *report.Input) {
			in.Advertisements = l.Items
		}),
		kindOf("lbnodes", &millracev1beta1.LBNode{}, func(l *millracev1beta1.LBNodeList, in *report.Input) { in.LBNodes = l.Items }),
		kindOf("lbnodereports", &millracev1beta1.LBNodeReport{}, func(l *millracev1beta1.LBNodeReportList, in *report.Input) {
			in.LBNodeReports = l.Items
		}),
		kindOf("viproutes", &millracev1beta1.VIPRoute{}, func(l *millracev1beta1.VIPRouteList, in *report.Input) { in.Routes = l.Items }),
		kindOf("services", &corev1.Service{}, func(l *corev1.ServiceList, in *report.Input) { in.Services = l.Items }),
		kindOf("endpointslices", &discoveryv1.EndpointSlice{}, func(l *discoveryv1.EndpointSliceList, in *report.Input) {
			in.EndpointSlices = l.Items
		}),
		pods,
	}
}

func (k inputKind) options(namespace string, more ...client.ListOption) []client.ListOption {
	if k.own {
		more = append(more, client.InNamespace(namespace))
	}
	return more
}

// allowed reads one object of each kind to find out which kinds are readable.
func allowed(ctx context.Context, reader client.Reader, namespace string) (kinds []inputKind, refused []Refused, err error) {
	all := inputKinds()
	errs := make([]error, len(all))
	group, trying := errgroup.WithContext(ctx)
	for i, kind := range all {
		group.Go(func() error {
			errs[i] = reader.List(trying, kind.list(), kind.options(namespace, client.Limit(1))...)
			if errs[i] == nil || apierrors.IsForbidden(errs[i]) || apierrors.IsNotFound(errs[i]) {
				return nil
			}
			return errs[i]
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	for i, kind := range all {
		if errs[i] == nil {
			kinds = append(kinds, kind)
			continue
		}
		refused = append(refused, Refused{Kind: kind.plural, Err: errs[i]})
	}
	if slices.IndexFunc(refused, func(r Refused) bool { return !apierrors.IsNotFound(r.Err) }) < 0 && len(kinds) == 0 {
		return nil, nil, refused[0].Err
	}
	return kinds, refused, nil
}
