#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prepare.sh WORK OUTPUT: creates a module in WORK that builds Calico from a copy of its sources, and
# copies its manifests and the second name of its plugin to OUTPUT.
set -eu

go mod download github.com/projectcalico/calico
module=$(go list -m -f '{{.Dir}}' github.com/projectcalico/calico)
cp -r "$module" "$1/calico"
chmod -R u+w "$1/calico"
cp go.mod go.sum "$1/"
(cd "$1" && go mod edit -replace github.com/projectcalico/calico=./calico)

# The available version of the API has types for these constants.
sed -i '/^func validateIptablesBackend/,/^}/ s/api\.\(IptablesBackend[A-Za-z]*\)/string(api.\1)/g' \
	"$1/calico/libcalico-go/lib/validator/v3/validator.go"

# Its Go code links its own copy of libbpf, in a subdirectory.
libbpf=$1/calico/felix/bpf-gpl/include/libbpf/src
mkdir -p "$libbpf/$(go env GOARCH)"
make -s -C "$libbpf" BUILD_STATIC_ONLY=1 OBJDIR="$(go env GOARCH)"

cp "$module/manifests/crds.yaml" "$2/crds.yaml"
chmod u+w "$2/crds.yaml"
ln -s calico "$2/calico-ipam"
