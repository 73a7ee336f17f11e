// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"fmt"
	"strings"

	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/millrace-lb/millrace/gateway/resource"
)

const (
	// maxRefusals is the maximum number of reported resources.
	maxRefusals = 100
	// maxReason is the maximum length of a reported reason in bytes.
	maxReason = 512
)

// NewRefusals encodes rejected resources. A controller that cannot decode them treats the whole version as
// rejected.
func NewRefusals(refused []*resource.Refusal) *rpc.Status {
	said := &resource.Refusals{Total: uint32(len(refused))}
	for _, each := range refused[:min(len(refused), maxRefusals)] {
		said.Refusals = append(said.Refusals, &resource.Refusal{
			Resource: each.GetResource(), Route: each.GetRoute(), Retained: each.GetRetained(), Reason: shorten(each.GetReason()),
		})
	}
	status := &rpc.Status{
		Code:    int32(codes.InvalidArgument),
		Message: fmt.Sprintf("%d resources are rejected and the others served: %s", len(refused), said.GetRefusals()[0].GetReason()),
	}
	if details, err := anypb.New(said); err == nil {
		status.Details = append(status.Details, details)
	}
	return status
}

// ReadRefusals decodes the details of NewRefusals. It returns nil if the whole version was rejected.
func ReadRefusals(status *rpc.Status) *resource.Refusals {
	for _, details := range status.GetDetails() {
		said := &resource.Refusals{}
		if details.UnmarshalTo(said) == nil && len(said.GetRefusals()) > 0 {
			return said
		}
	}
	return nil
}

func shorten(text string) string {
	if len(text) <= maxReason {
		return text
	}
	return strings.ToValidUTF8(text[:maxReason-4], "") + " ..."
}
