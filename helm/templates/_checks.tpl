{{/* What the values cannot mean together. Each is refused with a sentence that says what to do. */}}

{{- define "fairlead.check" -}}
{{- include "fairlead.checkOwned" . -}}
{{- include "fairlead.checkKeys" . -}}
{{- include "fairlead.checkReplicas" . -}}
{{- include "fairlead.checkMonitoring" . -}}
{{- include "fairlead.checkMadeSecret" . -}}
{{- end -}}

{{/* Settings of the gateway that are the chart's: it would not listen where the services look, or write where it may not. */}}
{{- define "fairlead.checkOwned" -}}
{{- $owned := dict "listen" (list "host" "port") "admin" (list "enabled" "host" "port" "key_file")
  "auth" (list "secret_file" "keys_file") "metrics" (list "host" "port") "state" (list "file")
  "cluster" (list "host" "port" "advertise" "name" "secret_file" "tls") -}}
{{- range $section, $names := $owned -}}
{{- range $names -}}
{{- if hasKey (default dict (get $.Values.config $section)) . -}}
{{- fail (printf "config.%s.%s is set by the chart: take it out (service, admin, metrics, cluster, keys and persistence are what to set)." $section .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $redis := default dict (dig "redis" dict (default dict .Values.config.state)) -}}
{{- if and .Values.redis.url $redis.url (ne .Values.redis.url (toString $redis.url)) -}}
{{- fail "redis.url and config.state.redis.url name two servers: set one of them." -}}
{{- end -}}
{{- if and .Values.redis.existingSecret (not (include "fairlead.sharesState" .)) -}}
{{- fail "redis.existingSecret holds a password, but for no Redis: set redis.url." -}}
{{- end -}}
{{- if and (or .Values.cluster.existingSecret .Values.cluster.tls.existingSecret) (not (include "fairlead.isClustered" .)) -}}
{{- fail "cluster has a secret for replicas that meet, but they do not: set redis.url, and leave config.cluster.enabled out." -}}
{{- end -}}
{{- if and (include "fairlead.isClustered" .) (has (int .Values.cluster.port) (list 8080 8081 9090)) -}}
{{- fail (printf "cluster.port=%d is a port of the pod already (8080, 8081 and 9090 are): set another one." (int .Values.cluster.port)) -}}
{{- end -}}
{{- if and .Values.persistence.existingClaim (not .Values.persistence.enabled) -}}
{{- fail "persistence.existingClaim is not used while persistence.enabled is false: set it, too." -}}
{{- end -}}
{{- end -}}

{{- define "fairlead.checkKeys" -}}
{{- $auth := default dict .Values.config.auth -}}
{{- $isKept := and .Values.admin.enabled (or .Values.persistence.enabled (include "fairlead.sharesState" .)) -}}
{{- if and .Values.keys.existingSecret .Values.keys.existingHmacSecret -}}
{{- fail "keys.existingSecret has the HMACs' secret, too: take keys.existingHmacSecret out." -}}
{{- end -}}
{{- if ne (default "open" $auth.mode) "keys" -}}
{{- if .Values.keys.existingSecret -}}
{{- fail "keys.existingSecret has no effect while config.auth.mode is open, which lets every key in: set config.auth.mode=keys, or use keys.existingHmacSecret for the HMACs' secret alone." -}}
{{- end -}}
{{- else if not $isKept -}}
{{- if not (or .Values.keys.existingSecret (and .Values.admin.enabled (dig "data" list (default dict .Values.config.jwt)))) -}}
{{- fail "config.auth.mode is keys, but there are no keys, and every call would get 401: set keys.existingSecret (the files of 'fairlead keys new'); or persistence.enabled or redis.url, so that keys of the admin API are kept." -}}
{{- end -}}
{{- if not .Values.config.tenants -}}
{{- fail "config.auth.mode is keys, but there are no tenants: name them in config.tenants; or set persistence.enabled or redis.url, so that tenants of the admin API are kept." -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "fairlead.checkReplicas" -}}
{{- if and .Values.persistence.enabled (include "fairlead.isReplicated" .) -}}
{{- fail "persistence is one volume for one pod (ReadWriteOnce, one writer), but there may be more: set replicaCount=1 and autoscaling.enabled=false; or persistence.enabled=false, and redis.url for state that pods share." -}}
{{- end -}}
{{- if and .Values.persistence.enabled (ne (default "Recreate" .Values.strategy.type) "Recreate") -}}
{{- fail "with persistence.enabled strategy.type must be Recreate: two pods would have one file at a time." -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas." -}}
{{- end -}}
{{- end -}}

{{- define "fairlead.checkMonitoring" -}}
{{- if .Values.monitoring.prometheus.enabled -}}
{{- if not (or .Values.metrics.enabled (and .Values.admin.enabled .Values.monitoring.prometheus.keySecret.name)) -}}
{{- fail "monitoring.prometheus can read metrics nowhere: set metrics.enabled=true; or admin.enabled=true, and monitoring.prometheus.keySecret.name to a secret with an admin key." -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsFrom) -}}
{{- fail "networkPolicy lets nobody to the metrics that monitoring.prometheus is to read: set networkPolicy.metricsFrom." -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where the cluster is not seen, every rendering would make another secret, which fits nothing that is in Redis. */}}
{{- define "fairlead.checkMadeSecret" -}}
{{- with include "fairlead.madeSecret" . -}}
{{- if not (or (lookup "v1" "Secret" $.Release.Namespace .) (lookup "v1" "Namespace" "" $.Release.Namespace)) -}}
{{- fail (printf "Pods that share Redis need one secret for the HMACs of keys. The chart makes one where it sees the cluster, to keep it over upgrades, but it does not see namespace %s (it is not there yet, or this is helm template): make a secret with the entry fairlead.secret (kubectl create secret generic NAME --from-literal=fairlead.secret=$(openssl rand -hex 32)) and set keys.existingHmacSecret." $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
