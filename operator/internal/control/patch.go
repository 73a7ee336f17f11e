// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// SameObject is a patch that fails with a conflict if the object was recreated under the same name.
type SameObject struct {
	client.Patch
	UID types.UID
}

// Data implements client.Patch.
func (p SameObject) Data(object client.Object) ([]byte, error) {
	data, err := p.Patch.Data(object)
	if err != nil {
		return nil, err
	}
	var patch, metadata map[string]json.RawMessage
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, fmt.Errorf("decode a patch of %T %s: %w", object, object.GetName(), err)
	}
	if raw, ok := patch["metadata"]; ok {
		if err := json.Unmarshal(raw, &metadata); err != nil {
			return nil, fmt.Errorf("decode the metadata of a patch of %T %s: %w", object, object.GetName(), err)
		}
	}
	if metadata == nil {
		metadata = map[string]json.RawMessage{}
	}
	if metadata["uid"], err = json.Marshal(p.UID); err != nil {
		return nil, err
	}
	if patch["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, err
	}
	return json.Marshal(patch)
}

// MaxNamed is the maximum number of objects that a message lists.
const MaxNamed = 5

// Truncate cuts a message to a number of bytes at a character boundary.
func Truncate(message string, longest int) string {
	if len(message) <= longest {
		return message
	}
	return strings.ToValidUTF8(message[:longest-4], "") + " ..."
}
