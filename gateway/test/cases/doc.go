// SPDX-License-Identifier: Apache-2.0

// Package cases sends requests through the compiler and real proxies: each file of testdata contains
// objects, requests and the expected responses.
package cases
