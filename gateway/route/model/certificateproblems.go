// SPDX-License-Identifier: Apache-2.0

package model

import (
	"strings"
	"unicode"
)

// AnnotationCertificateProblems is an annotation of the Service of an owner's proxies. Its value has a line
// "NAMESPACE/SECRET: PROBLEM" for each served certificate with a problem, at most 50 and 5 of a namespace.
const AnnotationCertificateProblems = "millrace.io/certificate-problems"

// CertificateProblem is a problem of the certificate in a Secret.
type CertificateProblem struct{ Namespace, Secret, Message string }

// Limits of AnnotationCertificateProblems, for a Service and for a namespace with Secrets. A message can contain
// parts of a Secret, and annotations are limited to 256 KiB.
const (
	maxCertificateProblems, maxNamespaceProblems = 50, 5
	maxProblemBytes                              = 200
)

// EncodeCertificateProblems returns the value of AnnotationCertificateProblems.
func EncodeCertificateProblems(problems []CertificateProblem) string {
	var lines []string
	count := map[string]int{}
	for _, problem := range problems {
		if count[problem.Namespace] < maxNamespaceProblems && len(lines) < maxCertificateProblems {
			count[problem.Namespace]++
			lines = append(lines, problem.Namespace+"/"+problem.Secret+": "+printable(problem.Message))
		}
	}
	return strings.Join(lines, "\n")
}

// DecodeCertificateProblems is the inverse of EncodeCertificateProblems. Anybody who may write a Service can set the
// annotation, so the limits apply again, and other lines are ignored.
func DecodeCertificateProblems(text string) (problems []CertificateProblem) {
	for line := range strings.Lines(text) {
		secret, message, isProblem := strings.Cut(strings.TrimSpace(line), ": ")
		namespace, name, isName := strings.Cut(printable(secret), "/")
		if isProblem && isName && len(problems) < maxCertificateProblems {
			problems = append(problems, CertificateProblem{namespace, name, printable(message)})
		}
	}
	return problems
}

// printable returns the text up to its limit, with a space in place of each control character.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text[:min(len(text), maxProblemBytes)], "\uFFFD"))
}
