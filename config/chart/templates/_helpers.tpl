{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* The labels that helm's users look for, beside those of config/. Pods have none of them: an upgrade
would replace all. */}}
{{- define "millrace.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}

{{/* millrace.image (list $ NAME) is the image of that name. A runtime ignores the tag beside a digest, so
another tag than the chart's would run no other image. */}}
{{- define "millrace.image" -}}
{{- $values := (index . 0).Values.images }}
{{- $version := (index . 0).Chart.AppVersion }}
{{- $name := index . 1 }}
{{- $image := printf "%s/%s:%s" $values.registry $name $values.tag }}
{{- with get ($values.digests | default dict) $name }}
{{- if ne $values.tag $version }}
{{- printf "images.tag is %s, but images.digests.%s selects the image %s of %s whatever the tag is: set images.digests.%s=null to use the tag (each image has a digest), or leave images.tag out" $values.tag $name . $version $name | fail }}
{{- end }}
{{- $image = printf "%s@%s" $image . }}
{{- end }}
{{- $image }}
{{- end }}

{{- define "millrace.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* millrace.uninstallJob (list $ STEP) is a Job of an uninstallation. */}}
{{- define "millrace.uninstallJob" }}
{{- $ := index . 0 }}
{{- with index . 1 }}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .name }}
  namespace: millrace-system
  labels: {{- include "millrace.labels" $ | nindent 4 }}
  annotations:
    helm.sh/hook-weight: {{ .weight | quote }}
    # Why it refuses is in its log.
    helm.sh/hook-output-log-policy: hook-failed
    {{- include "millrace.hook" $ | nindent 4 }}
spec:
  backoffLimit: 0
  # The pod template of a Job is immutable: one that was applied without Helm is gone before the next version.
  ttlSecondsAfterFinished: 3600
  template:
    metadata:
      labels:
        app.kubernetes.io/name: millrace
        app.kubernetes.io/component: uninstall
        app.kubernetes.io/part-of: millrace
    spec:
      serviceAccountName: millrace-uninstall
      priorityClassName: system-cluster-critical
      restartPolicy: Never
      {{- with $.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: uninstall
          image: {{ include "millrace.image" (list $ "operator") }}
          {{- with $.Values.images.pullPolicy }}
          imagePullPolicy: {{ . }}
          {{- end }}
          args: {{- toYaml .args | nindent 12 }}
          resources:
            requests:
              cpu: 10m
              memory: 32Mi
            limits:
              memory: 256Mi
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
{{- end }}
{{- end }}
