#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Regenerates all generated files and fails if a file changed, that is, if the commit lacks the result
# of its sources. The changes remain in the work tree. Before that it checks the list of pure packages,
# and the links and names in the documentation; then, that the command line compiles for all systems
# and the BPF programs work with a second compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

# Commit messages after this commit are verified.
first_checked=7a2b4037fc59d5170fab040c3162c5709b4b17ad

hack/pure.sh
go test ./hack/docs
go run ./hack/commits -since "$first_checked"

# One line per file, tracked or new, with the hash of its content.
files() {
	git ls-files -z --cached --others --exclude-standard | sort -zu |
		while IFS= read -r -d '' file; do
			[ ! -f "$file" ] || printf '%s\0' "$file"
		done | xargs -0 sha256sum --
}

before=$(files)
hack/generate.sh
after=$(files)
if [ "$before" != "$after" ]; then
	echo "verify: these files are not what hack/generate.sh makes of their sources:" >&2
	diff <(echo "$before") <(echo "$after") | sed -n 's/^[<>] [0-9a-f]\{64\}  /  /p' | sort -u >&2 || true
	git --no-pager diff --stat >&2
	echo "verify: commit the result of make generate" >&2
	exit 1
fi
echo "verify: everything generated is up to date"
go run ./hack/typecheck
hack/compilers.sh
