// SPDX-License-Identifier: Apache-2.0

// Package cases sends requests through the compiler and real proxies: each file of testdata has objects,
// requests and the expected answers.
package cases
