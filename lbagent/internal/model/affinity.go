// SPDX-License-Identifier: Apache-2.0

package model

import (
	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// maxAffinitySeconds is the API server's limit for Service.spec.sessionAffinityConfig.clientIP.timeoutSeconds.
const maxAffinitySeconds = 86400

// affinity returns the timeout of a Service's session affinity in seconds since the client's last new
// connection; 0 means no affinity.
func (b *builder) affinity(name ServiceName, service *corev1.Service) uint32 {
	if service.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	config := service.Spec.SessionAffinityConfig
	if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
		return uint32(corev1.DefaultClientIPServiceAffinitySeconds)
	}
	seconds := *config.ClientIP.TimeoutSeconds
	if seconds < 1 || seconds > maxAffinitySeconds {
		b.problem(name.reference(), millracev1beta1.ReasonInvalid,
			"spec.sessionAffinityConfig.clientIP.timeoutSeconds: %d is not between 1 and %d; %d is used",
			seconds, maxAffinitySeconds, corev1.DefaultClientIPServiceAffinitySeconds)
		return uint32(corev1.DefaultClientIPServiceAffinitySeconds)
	}
	return uint32(seconds)
}
