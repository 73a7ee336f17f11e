#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs missing Debian or Ubuntu packages that the project requires. Requires root only if a package
# is missing. Tested on Debian 12; Ubuntu 24.04 has the same names.
#
#   hack/prerequisites.sh --runtime    for the lab and the demo
#   hack/prerequisites.sh --develop    also for building and checking the BPF programs
#   hack/prerequisites.sh --cni        for the lab with Calico or Cilium
#   hack/prerequisites.sh --kernels    for tests on other kernels
#   hack/prerequisites.sh --kubernetes-e2e    for Kubernetes' own tests on the lab
#   hack/prerequisites.sh --bench-gateway    proxies for comparison, and a load generator
#   hack/prerequisites.sh --hostile          backends for malformed requests
#   hack/prerequisites.sh --metallb          for the lab with MetalLB's mode frr
#   hack/prerequisites.sh --browser          a browser for the page of millrace ui
#   hack/prerequisites.sh --docs             for building the documentation's site
#
# Several options can be combined.

set -eu

# frr, bird2: the lab's routers. openbgpd, exabgp: other routers of tests. libseccomp-dev, pkg-config,
# gcc, libc6-dev: runc is built from source. util-linux: setpriv. iptables: Flannel, and kube-proxy's
# other mode. conntrack: tests delete connections of the kernel. procps: tests stop programs. tcpdump:
# for debugging.
runtime="frr bird2 openbgpd exabgp iproute2 ethtool nftables iptables conntrack procps libseccomp-dev pkg-config gcc libc6-dev util-linux curl"
# dpkg, xz-utils: unpack kernels and their modules.
kernels="qemu-system-x86 iproute2 ethtool nftables iptables dpkg xz-utils"
# bird2: another router for tests. clang-16: a second compiler of the BPF programs (compilers.sh).
# clang-format-19 formats them. openssl verifies the signature of a release in a test. npm installs
# markdownlint.
develop="bird2 openssl clang-19 clang-format-19 llvm-19 clang-16 llvm-16 libbpf-dev bpftool shellcheck tcpdump npm"

# clang-19: Cilium's agent compiles its programs. The others are for Calico.
cni="$runtime clang-19 llvm-19 ipset make libelf-dev zlib1g-dev libpcap-dev"

# Programs that these tests run in pods.
kubernetes_e2e="$runtime wget netcat-openbsd"

# nghttp2-client: h2load. nginx serves as the backend, too.
bench_gateway="haproxy nginx nghttp2-client iproute2 util-linux"

# Backends with different HTTP parsers.
hostile="haproxy nginx nodejs gunicorn"

# frr-pythontools: frr-reload.py, with which MetalLB's speakers configure FRR.
metallb="$runtime frr-pythontools"

# fonts-dejavu-core: without any font, pages have no text.
browser="chromium fonts-dejavu-core"

docs="npm"

usage() {
	echo "usage: hack/prerequisites.sh --runtime | --develop | --cni | --kernels | --kubernetes-e2e | --bench-gateway | --hostile | --metallb | --browser | --docs, or several" >&2
	exit 2
}

[ $# -ge 1 ] || usage
wanted=
for option; do
	case $option in
	--runtime) wanted="$wanted $runtime" ;;
	--develop) wanted="$wanted $runtime $develop" ;;
	--cni) wanted="$wanted $cni" ;;
	--kernels) wanted="$wanted $kernels" ;;
	--kubernetes-e2e) wanted="$wanted $kubernetes_e2e" ;;
	--bench-gateway) wanted="$wanted $bench_gateway" ;;
	--hostile) wanted="$wanted $hostile" ;;
	--metallb) wanted="$wanted $metallb" ;;
	--browser) wanted="$wanted $browser" ;;
	--docs) wanted="$wanted $docs" ;;
	*) usage ;;
	esac
done

if ! command -v go >/dev/null; then
	echo "go: missing, and distributions package versions that are too old: install it from https://go.dev/dl" >&2
	exit 1
fi

# provided PACKAGE: returns 0 if the package is installed or provided by another one.
provided() {
	dpkg-query --show --showformat '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed && return 0
	case $1 in
	# Ubuntu ships bpftool with the kernel's tools.
	bpftool) command -v bpftool >/dev/null ;;
	# Node's own packages contain npm.
	npm) command -v npm >/dev/null ;;
	*) return 1 ;;
	esac
}

if ! command -v dpkg-query >/dev/null; then
	echo "this is neither Debian nor Ubuntu: install manually what these packages hold: $wanted" >&2
	exit 1
fi

missing=
for package in $wanted; do
	provided "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
	echo "missing packages:$missing: run hack/prerequisites.sh $* as root" >&2
	exit 1
fi

export DEBIAN_FRONTEND=noninteractive

# Packages start their services on installation, but the lab runs FRR in its own namespaces, and the
# machine itself must not run a router. 101 means "not allowed" to invoke-rc.d.
policy=/usr/sbin/policy-rc.d
installed_policy=
restore_policy() {
	if [ -n "$installed_policy" ]; then
		rm -f "$policy"
		installed_policy=
	fi
}
trap restore_policy EXIT
trap 'exit 1' INT TERM HUP
if [ ! -e "$policy" ]; then
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
	installed_policy=yes
fi

services=
for package in $missing; do
	case $package in
	bird2) services="$services bird.service" ;;
	frr | openbgpd | exabgp) services="$services $package.service" ;;
	esac
done

candidate() {
	apt-cache policy "$1" 2>/dev/null | grep -q '^  Candidate: [^(]'
}

apt-get update -qq
names=
for package in $missing; do
	name=$package
	# On Ubuntu, bpftool is a virtual package.
	if [ "$package" = bpftool ] && ! candidate bpftool; then
		name=linux-tools-common
	fi
	if ! candidate "$name"; then
		echo "$package: this distribution has no such package" >&2
		if [ "$package" = clang-19 ] || [ "$package" = clang-format-19 ] || [ "$package" = llvm-19 ]; then
			echo "see https://apt.llvm.org for it" >&2
		fi
		exit 1
	fi
	names="$names $name"
done
# A single installation, because each one reads the package lists and runs triggers.
# shellcheck disable=SC2086 # These are several names.
apt-get install -qq --yes --no-install-recommends $names >/dev/null
echo "installed:$names"

if [ -d /run/systemd/system ] && [ -n "$services" ]; then
	# shellcheck disable=SC2086 # These are several names.
	systemctl disable --quiet $services
fi
