{{/* The names, labels and sums that several templates need. */}}

{{- define "fairlead.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "fairlead.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "fairlead.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "fairlead.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "fairlead.selectorLabels" -}}
app.kubernetes.io/name: {{ include "fairlead.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fairlead.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "fairlead.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "fairlead.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "fairlead.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "fairlead.image" -}}
{{- $image := printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- if .Values.image.registry -}}{{ printf "%s/%s" .Values.image.registry $image }}{{- else -}}{{ $image }}{{- end -}}
{{- end -}}

{{/* The configuration, with what only the chart knows. */}}
{{- define "fairlead.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "listen" (merge (dict "host" "0.0.0.0" "port" 8080) (default dict $config.listen)) -}}
{{- if .Values.keys.existingSecret -}}
{{- $files := dict "keys_file" "/etc/fairlead-keys/fairlead.keys" "secret_file" "/etc/fairlead-keys/fairlead.secret" -}}
{{- $_ := set $config "auth" (merge $files (default dict $config.auth)) -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{/* Time to say "not ready", to let streams end, and to end the rest with an error event. */}}
{{- define "fairlead.terminationGracePeriodSeconds" -}}
{{- $shutdown := default dict .Values.config.shutdown -}}
{{- $lameDuck := ternary $shutdown.lame_duck_s 5 (hasKey $shutdown "lame_duck_s") -}}
{{- $drain := ternary $shutdown.drain_s 20 (hasKey $shutdown "drain_s") -}}
{{- addf $lameDuck $drain 10 | ceil | int -}}
{{- end -}}
