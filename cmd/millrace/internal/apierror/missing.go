// SPDX-License-Identifier: Apache-2.0

package apierror

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/millrace-lb/millrace/api/desired"
)

// Missing is the error about an object that does not exist.
type Missing struct {
	Kind, Name string
	Names      []string
}

// listed limits the names in a message without a similar name.
const listed = 5

func (m *Missing) Error() string {
	text := "no " + m.Kind + " " + m.Name
	if similar := m.Similar(); similar != "" {
		return text + "; did you mean " + similar + "?"
	}
	names := slices.Sorted(slices.Values(m.Names))
	if len(names) > 0 && len(names) <= listed {
		text += "; existing names: " + strings.Join(names, ", ")
	}
	return text
}

// Similar returns the existing name that the missing one probably stands for, or "".
func (m *Missing) Similar() string {
	return desired.Nearest(m.Name, slices.Sorted(slices.Values(m.Names)))
}

var kinds = map[string]string{
	"nodes": "node", "namespaces": "namespace", "pods": "pod", "services": "Service", "secrets": "Secret", "daemonsets": "DaemonSet",
	"vippools": "VIPPool", "vips": "VIP", "lbpeers": "LBPeer", "vipadvertisements": "VIPAdvertisement", "viproutes": "VIPRoute",
	"lbnodes": "LBNode", "lbnodereports": "LBNodeReport",
}

func kindOf(resource schema.GroupResource) string {
	if kind := kinds[resource.Resource]; kind != "" {
		return kind
	}
	return resource.String()
}
