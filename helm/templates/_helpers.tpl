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

{{/* The configuration, with what only the chart knows. What it sets goes before what is in the values. */}}
{{- define "fairlead.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "log" (merge (default dict $config.log) (dict "format" "json")) -}}
{{- $state := "/var/lib/fairlead" -}}
{{- $listen := dict "host" "0.0.0.0" "port" 8080 -}}
{{- $_ := set $config "listen" (merge $listen (default dict $config.listen)) -}}
{{- $auth := dict "secret_file" (printf "%s/fairlead.secret" $state) -}}
{{- if .Values.keys.existingSecret -}}
{{- $auth = dict "keys_file" "/etc/fairlead-keys/fairlead.keys" "secret_file" "/etc/fairlead-keys/fairlead.secret" -}}
{{- end -}}
{{- $_ := set $config "auth" (merge $auth (default dict $config.auth)) -}}
{{- if .Values.admin.enabled -}}
{{- $keyFile := ternary "/etc/fairlead-admin/admin-key" (printf "%s/admin-key" $state) (ne .Values.admin.existingSecret "") -}}
{{- $admin := dict "enabled" true "host" "0.0.0.0" "port" 8081 "key_file" $keyFile -}}
{{- $_ := set $config "admin" (merge $admin (default dict $config.admin)) -}}
{{- $kept := dict "file" (printf "%s/fairlead.db" $state) -}}
{{- if .Values.redis.url -}}
{{- $redis := dict "url" .Values.redis.url -}}
{{- if .Values.redis.existingSecret -}}{{- $_ := set $redis "password_file" "/etc/fairlead-redis/redis-password" -}}{{- end -}}
{{- $_ := set $kept "redis" $redis -}}
{{- end -}}
{{- $_ := set $config "state" (merge $kept (default dict $config.state)) -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{/* Whether the pod asks the cluster where backends are: "yes" or nothing. */}}
{{- define "fairlead.asksCluster" -}}
{{- range .Values.config.discovery -}}{{- if .kubernetes -}}yes{{- end -}}{{- end -}}
{{- end -}}

{{/* Time to say "not ready", to let streams end, and to end the rest with an error event. */}}
{{- define "fairlead.terminationGracePeriodSeconds" -}}
{{- $shutdown := default dict .Values.config.shutdown -}}
{{- $lameDuck := ternary $shutdown.lame_duck_s 5 (hasKey $shutdown "lame_duck_s") -}}
{{- $drain := ternary $shutdown.drain_s 20 (hasKey $shutdown "drain_s") -}}
{{- addf $lameDuck $drain 10 | ceil | int -}}
{{- end -}}
