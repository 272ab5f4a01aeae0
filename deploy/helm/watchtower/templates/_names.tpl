{{- define "labels" -}}
{app.kubernetes.io/name: watchtower, app.kubernetes.io/instance: {{ .root.Release.Name | quote }}, app.kubernetes.io/component: {{ .part }}}
{{- end }}

{{- define "image" -}}
{{ .root.Values.image.registry }}watchtower-{{ .part }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "host" -}}
{{ .Release.Name }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "pod" -}}
automountServiceAccountToken: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "settings" -}}
[tower]
host = "0.0.0.0"
data_dir = "/var/lib/watchtower"
# Names of the Service, for a tower without tokens: others get 421.
allowed_hosts = [
  "{{ .Release.Name }}", "{{ .Release.Name }}.{{ .Release.Namespace }}", "{{ include "host" . }}",
  "{{ include "host" . }}.cluster.local",
]
{{- if .Values.tokens.secret }}
{{- range list "agent" "reader" "operator" }}
{{ . }}_token_file = "/run/watchtower/tokens/{{ . }}"
{{- end }}
{{- else }}
insecure = true
{{- end }}
{{- if .Values.tls.secret }}
tls_cert = "/run/watchtower/tls/tls.crt"
tls_key = "/run/watchtower/tls/tls.key"
{{- end }}
{{- with .Values.tower.settings }}
{{ trim . }}
{{- end }}
{{- end }}
