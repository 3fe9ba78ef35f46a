{{/*
weir.object: a manifest beside the chart as YAML, with the patches of the components whose values are enabled, in the release's
namespace. Takes the root context and "file".
*/}}
{{- define "weir.object" -}}
{{- $object := .root.Files.Get .file | fromYaml }}
{{- if not $object }}{{ fail (printf "%s is not in the chart" .file) }}{{ end }}
{{- $values := .root.Values }}
{{- $components := list }}
{{- if $values.database.enabled }}{{ $components = append $components "components/database" }}{{ end }}
{{- if $values.redis.enabled }}{{ $components = append $components "components/redis" }}{{ end }}
{{- if $values.tls.enabled }}{{ $components = append $components "components/tls" }}{{ end }}
{{- if $values.httpApi.enabled }}{{ $components = append $components "components/http-api" }}{{ end }}
{{- if $values.tracing.enabled }}{{ $components = append $components "components/tracing" }}{{ end }}
{{- if eq $values.filter.kind "native" }}
  {{- $components = append $components "overlays/istio/native" }}
  {{- $components = append $components "overlays/envoy-gateway/native" }}
{{- else if eq $values.istio.api "TrafficExtension" }}
  {{- $components = append $components "overlays/istio/traffic-extension" }}
{{- end }}
{{- range $component := $components }}
  {{- range $patch := (printf "%s/kustomization.yaml" $component | $.root.Files.Get | fromYaml).patches }}
    {{- if and (eq $patch.target.kind $object.kind) (eq $patch.target.name $object.metadata.name) }}
      {{- range $operation := fromYamlArray $patch.patch }}
        {{- include "weir.apply" (dict "object" $object "operation" $operation) }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- $_ := set $object.metadata "namespace" .root.Release.Namespace }}
{{- $labels := dict "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) "app.kubernetes.io/managed-by" .root.Release.Service "app.kubernetes.io/instance" .root.Release.Name }}
{{- $_ := set $object.metadata "labels" (merge $labels ($object.metadata.labels | default dict)) }}
{{- toYaml $object }}
{{- end }}

{{/*
weir.apply: one operation of a JSON patch (RFC 6902: add, replace, move, remove) on "object", which it changes.
*/}}
{{- define "weir.apply" -}}
{{- $value := .operation.value }}
{{- if eq .operation.op "move" }}
  {{- $from := splitList "/" .operation.from | rest }}
  {{- $at := .object }}
  {{- range $step := initial $from }}
    {{- if kindIs "slice" $at }}{{ $at = index $at (int $step) }}{{ else }}{{ $at = get $at $step }}{{ end }}
  {{- end }}
  {{- $value = get $at (last $from) }}
  {{- $_ := unset $at (last $from) }}
{{- end }}
{{- $path := splitList "/" .operation.path | rest }}
{{- $at := .object }}
{{- $holder := dict }}
{{- $field := "" }}
{{- range $step := initial $path }}
  {{- if kindIs "slice" $at }}
    {{- $at = index $at (int $step) }}
  {{- else }}
    {{- $holder = $at }}
    {{- $field = $step }}
    {{- $at = get $at $step }}
  {{- end }}
{{- end }}
{{- if eq .operation.op "remove" }}
  {{- $_ := unset $at (last $path) }}
{{- else if eq (last $path) "-" }}
  {{- $_ := set $holder $field (append $at $value) }}
{{- else }}
  {{- $_ := set $at (last $path) $value }}
{{- end }}
{{- end }}

{{/* weir.image: "images.NAME" with its tag. */}}
{{- define "weir.image" -}}
{{ get .root.Values.images .name }}:{{ .root.Values.images.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* weir.config: the filter's configuration over that of an example, whose rules it replaces. */}}
{{- define "weir.config" -}}
{{- $config := deepCopy .root.Values.filter.config }}
{{- $_ := required "filter.config.rules is required where the filter is attached (istio.enabled, envoyGateway.enabled)" $config.rules }}
{{- $aggregator := $config.aggregator | default dict }}
{{- if not $aggregator.cluster }}{{ $_ := set $aggregator "cluster" .example.aggregator.cluster }}{{ end }}
{{- if not (or $aggregator.token $aggregator.token_env) }}
  {{- $_ := set $aggregator "token" (required "the filter needs secret.filterToken, filter.config.aggregator.token or filter.config.aggregator.token_env" .root.Values.secret.filterToken) }}
{{- end }}
{{- $_ := set $config "aggregator" $aggregator }}
{{- toYaml $config }}
{{- end }}

{{/* weir.cluster: the aggregators' cluster, with their address in the release's namespace. */}}
{{- define "weir.cluster" -}}
{{- $cluster := .cluster }}
{{- range $group := $cluster.load_assignment.endpoints }}
  {{- range $endpoint := $group.lb_endpoints }}
    {{- $_ := set $endpoint.endpoint.address.socket_address "address" (printf "weir-aggregator.%s.svc.cluster.local" $.root.Release.Namespace) }}
  {{- end }}
{{- end }}
{{- toYaml $cluster }}
{{- end }}
