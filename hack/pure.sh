#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails unless the pure packages of .golangci.yaml, which may not use clocks, contexts and I/O, are
# exactly those whose comment contains "is pure".
set -euo pipefail
cd "$(dirname "$0")/.."

# documented prints the packages whose comment contains "is pure".
documented() {
	# shellcheck disable=SC2016 # These are awk's.
	git ls-files -z --cached --others --exclude-standard -- '*.go' ':!*_test.go' | xargs -0 awk '
		FNR == 1 { comment = "" }
		/^\/\// { comment = comment " " substr($0, 3); next }
		/^package / {
			gsub(/ +/, " ", comment)
			if (comment ~ / is pure([^a-z]|$)/) print FILENAME
			nextfile
		}
		{ comment = "" }' | xargs -r dirname | sort -u
}

# listed prints the lines between the first path-except and the end of its expression.
listed() {
	sed -n '/path-except: &pure/,/)\/\[/s/^ *\([a-z][a-z0-9/]*\)|\{0,1\}\\$/\1/p' .golangci.yaml | sort -u
}

if [ -z "$(listed)" ]; then
	echo "pure: .golangci.yaml has no list of pure packages that this script can read" >&2
	exit 1
fi
if ! difference=$(diff <(listed) <(documented)); then
	echo "pure: packages that are only in .golangci.yaml (<), or only say so in their comment (>):" >&2
	grep '^[<>]' <<<"$difference" >&2
	exit 1
fi
