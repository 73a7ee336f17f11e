// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: "live.millrace.io", Version: "v1alpha1"}

// Resources, as they are in paths.
const (
	ResourceServiceTraffic   = "servicetraffic"
	ResourceVIPAnnouncements = "vipannouncements"
	ResourceBGPSessions      = "bgpsessions"
	ResourceFlows            = "flows"
	ResourceDrops            = "drops"
)

// Fields that select flows and drops (--field-selector). LabelService in a label selector is equivalent to
// FieldService.
const (
	// FieldService is the name of a Service.
	FieldService = "service"
	// FieldClient is an address or a prefix (CIDR) of clients.
	FieldClient = "client"
	// LabelService is a label of flows and drops: the name of the Service.
	LabelService = "kubernetes.io/service-name"
)

// AddToScheme adds the kinds of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&ServiceTraffic{}, &ServiceTrafficList{},
		&VIPAnnouncement{}, &VIPAnnouncementList{},
		&BGPSession{}, &BGPSessionList{},
		&Flow{}, &FlowList{},
		&Drop{}, &DropList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
