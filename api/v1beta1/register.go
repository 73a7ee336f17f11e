// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: "millrace.io", Version: "v1beta1"}

// AddToScheme adds this package's kinds to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&VIPPool{}, &VIPPoolList{},
		&VIP{}, &VIPList{},
		&LBPeer{}, &LBPeerList{},
		&VIPAdvertisement{}, &VIPAdvertisementList{},
		&LBNode{}, &LBNodeList{},
		&LBNodeReport{}, &LBNodeReportList{},
		&VIPRoute{}, &VIPRouteList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
