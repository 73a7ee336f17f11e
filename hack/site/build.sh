#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the documentation's site into dist/site. Dead links and pages that no list of pages
# contains are errors. Node's packages are installed into dist, because go would search the sources for packages.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=dist/docs
mkdir -p "$work"
cp -R hack/site/.vitepress hack/site/package.json hack/site/package-lock.json "$work/"
npm ci --prefix "$work" --ignore-scripts --no-audit --no-fund --loglevel=error
"$work/node_modules/.bin/vitepress" build "$work"
