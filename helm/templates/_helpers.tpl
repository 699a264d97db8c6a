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

{{/* Labels of an object or a pod: (list $ its-own). What selects goes before its own, and that before common ones. */}}
{{- define "fairlead.labels" -}}
{{- $root := index . 0 -}}
{{- $labels := include "fairlead.selectorLabels" $root | fromYaml -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- $_ := set $labels "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- toYaml (merge $labels (index . 1) $root.Values.commonLabels) -}}
{{- end -}}

{{/* The metadata of an object: (list $ its-name its-own-labels its-own-annotations). */}}
{{- define "fairlead.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
labels: {{- include "fairlead.labels" (list $root (index . 2)) | nindent 2 }}
{{- with merge (dict) (index . 3) $root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
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
{{- with .Values.image.digest -}}{{- $image = printf "%s@%s" $.Values.image.repository . -}}{{- end -}}
{{- $registry := default .Values.image.registry (dig "imageRegistry" "" (default dict .Values.global)) -}}
{{- if $registry -}}{{ printf "%s/%s" $registry $image }}{{- else -}}{{ $image }}{{- end -}}
{{- end -}}

{{/* Whether gateways share their state: "yes" or nothing. */}}
{{- define "fairlead.sharesState" -}}
{{- if or .Values.redis.url (dig "redis" nil (default dict .Values.config.state)) -}}yes{{- end -}}
{{- end -}}

{{/* Whether gateways keep one order, and meet at the cluster port: "yes" or nothing. */}}
{{- define "fairlead.isClustered" -}}
{{- $wanted := dig "enabled" nil (default dict .Values.config.cluster) -}}
{{- if and (include "fairlead.sharesState" .) (ne (toString $wanted) "false") -}}yes{{- end -}}
{{- end -}}

{{/* Whether there may be more than one pod at a time: "yes" or nothing. */}}
{{- define "fairlead.isReplicated" -}}
{{- if gt (int (ternary .Values.autoscaling.maxReplicas .Values.replicaCount .Values.autoscaling.enabled)) 1 -}}yes{{- end -}}
{{- end -}}

{{/*
The secret that the chart makes, or nothing: for the HMACs of keys, and as first key to the admin port. A pod that shares
its state and has no file that lasts would make one of its own, and not start beside what was made with another.
*/}}
{{- define "fairlead.madeSecret" -}}
{{- $given := or .Values.keys.existingSecret .Values.keys.existingHmacSecret (dig "secret" "" (default dict .Values.config.auth)) -}}
{{- range .Values.env -}}{{- if eq .name "FAIRLEAD_AUTH__SECRET" -}}{{- $given = .name -}}{{- end -}}{{- end -}}
{{- if and (include "fairlead.sharesState" .) (not .Values.persistence.enabled) (not $given) -}}
{{ include "fairlead.fullname" . | trunc 58 | trimSuffix "-" }}-hmac
{{- end -}}
{{- end -}}

{{/* The secret with the HMACs' secret in it, given or made, or nothing. */}}
{{- define "fairlead.keySecret" -}}
{{- or .Values.keys.existingSecret .Values.keys.existingHmacSecret (include "fairlead.madeSecret" .) -}}
{{- end -}}

{{/* The file of the first key to the admin port. */}}
{{- define "fairlead.adminKeyFile" -}}
{{- if .Values.admin.existingSecret -}}/etc/fairlead-admin/admin-key
{{- else if include "fairlead.madeSecret" . -}}/etc/fairlead-keys/admin-key
{{- else -}}/var/lib/fairlead/admin-key
{{- end -}}
{{- end -}}

{{/* The configuration, with what only the chart knows. */}}
{{- define "fairlead.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "log" (merge (default dict $config.log) (dict "format" "json")) -}}
{{- $listen := dict "host" "0.0.0.0" "port" 8080 -}}
{{- $_ := set $config "listen" (merge $listen (default dict $config.listen)) -}}
{{- $files := ternary "/etc/fairlead-keys" "/var/lib/fairlead" (ne (include "fairlead.keySecret" .) "") -}}
{{- $auth := dict "secret_file" (printf "%s/fairlead.secret" $files) -}}
{{- if .Values.keys.existingSecret -}}{{- $_ := set $auth "keys_file" (printf "%s/fairlead.keys" $files) -}}{{- end -}}
{{- $_ := set $config "auth" (merge $auth (default dict $config.auth)) -}}
{{- if .Values.admin.enabled -}}
{{- $admin := dict "enabled" true "host" "0.0.0.0" "port" 8081 "key_file" (include "fairlead.adminKeyFile" .) -}}
{{- $_ := set $config "admin" (merge $admin (default dict $config.admin)) -}}
{{- end -}}
{{- if .Values.metrics.enabled -}}
{{- $_ := set $config "metrics" (merge (dict "host" "0.0.0.0" "port" 9090) (default dict $config.metrics)) -}}
{{- end -}}
{{- $state := merge (dict "file" "/var/lib/fairlead/fairlead.db") (default dict $config.state) -}}
{{- if include "fairlead.sharesState" . -}}
{{- $redis := default dict $state.redis -}}
{{- with .Values.redis.url -}}{{- $_ := set $redis "url" . -}}{{- end -}}
{{- if .Values.redis.existingSecret -}}{{- $_ := set $redis "password_file" "/etc/fairlead-redis/redis-password" -}}{{- end -}}
{{- $_ := set $state "redis" $redis -}}
{{- end -}}
{{- $_ := set $config "state" $state -}}
{{- if include "fairlead.isClustered" . -}}
{{- $cluster := dict "host" "0.0.0.0" "port" .Values.cluster.port -}}
{{- if .Values.cluster.existingSecret -}}{{- $_ := set $cluster "secret_file" "/etc/fairlead-cluster/cluster-secret" -}}{{- end -}}
{{- if .Values.cluster.tls.existingSecret -}}
{{- $files := "/etc/fairlead-cluster-tls" -}}
{{- $tls := dict "cert_file" (printf "%s/tls.crt" $files) "key_file" (printf "%s/tls.key" $files) "ca_file" (printf "%s/ca.crt" $files) -}}
{{- $_ := set $cluster "tls" $tls -}}
{{- end -}}
{{- $_ := set $config "cluster" (merge $cluster (default dict $config.cluster)) -}}
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
