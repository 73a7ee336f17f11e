// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"testing"

	"github.com/millrace-lb/millrace/test/isolated"
)

func TestMain(m *testing.M) { isolated.Main(m) }
