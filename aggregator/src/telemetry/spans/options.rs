//! The options of spans, from the command line and from OpenTelemetry's environment variables.
//!
//! The exporter itself reads `OTEL_EXPORTER_OTLP_HEADERS`; the library reads `OTEL_SERVICE_NAME` and
//! `OTEL_RESOURCE_ATTRIBUTES`.

use opentelemetry_sdk::trace::Sampler;
use std::path::PathBuf;
use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

/// Timeout of a connection attempt.
const CONNECT: Duration = Duration::from_secs(2);
/// How often a collector that sends nothing during an export is pinged, and how long the answer may take.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Where spans are exported, and which are recorded.
#[derive(Clone, Debug)]
pub struct TelemetryOptions {
    /// The collector, `http://host:port` or `https://host:port`.
    pub endpoint: String,
    /// The authorities that may issue its certificate (PEM); the system's if not given.
    pub ca_file: Option<PathBuf>,
    /// Which spans are recorded.
    pub sampler: Sampler,
}

/// Why the options cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The endpoint is not a valid address.
    #[error(
        "{0:?} is not the address of an OTLP collector: {1}; set --otlp-endpoint or WEIR_OTLP_ENDPOINT to http://host:4317 or https://host:4317"
    )]
    Endpoint(String, String),
    /// Only gRPC is supported.
    #[error("OTEL_EXPORTER_OTLP_PROTOCOL is {0:?}; only grpc is supported")]
    Protocol(String),
    /// The sampler's name is not one of the specification's.
    #[error(
        "OTEL_TRACES_SAMPLER is {0:?}; expected always_on, always_off, traceidratio, parentbased_always_on, \
         parentbased_always_off or parentbased_traceidratio"
    )]
    Sampler(String),
    /// The argument is not a ratio.
    #[error("OTEL_TRACES_SAMPLER_ARG is {0:?}; expected a number from 0 to 1, such as 0.1")]
    Ratio(String),
    /// The certificates cannot be read.
    #[error("cannot read {0}: {1}; see OTEL_EXPORTER_OTLP_CERTIFICATE")]
    CaFile(String, String),
    /// The library returned another error.
    #[error("cannot export spans: {0}")]
    Exporter(String),
}

impl TelemetryOptions {
    /// Reads the command line's endpoint, empty if not given, and the environment. `None` if spans are disabled.
    pub fn read(
        endpoint: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<TelemetryOptions>, OptionsError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        // Variables for traces take precedence over those for all signals.
        let exporter = |what: &str| {
            let of_traces = set(&format!("OTEL_EXPORTER_OTLP_TRACES_{what}"));
            of_traces.or_else(|| set(&format!("OTEL_EXPORTER_OTLP_{what}")))
        };
        let is_off = set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || set("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
        let endpoint = Some(endpoint.to_owned()).filter(|given| !given.is_empty());
        let Some(endpoint) = endpoint.or_else(|| exporter("ENDPOINT")).filter(|_| !is_off) else {
            return Ok(None);
        };
        if let Some(protocol) = exporter("PROTOCOL").filter(|protocol| protocol != "grpc") {
            return Err(OptionsError::Protocol(protocol));
        }
        let sampler = sampler(set("OTEL_TRACES_SAMPLER"), set("OTEL_TRACES_SAMPLER_ARG"))?;
        let ca_file = exporter("CERTIFICATE").map(PathBuf::from);
        let options = TelemetryOptions { endpoint, ca_file, sampler };
        options.address().map(|_| Some(options))
    }

    /// The channel to the collector, not yet connected.
    pub(super) fn channel(&self) -> Result<Channel, OptionsError> {
        let mut endpoint = self
            .address()?
            .connect_timeout(CONNECT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE);
        if self.endpoint.starts_with("https:") {
            let tls = endpoint.tls_config(self.tls()?);
            endpoint = tls.map_err(|error| self.unusable(&error))?;
        }
        Ok(endpoint.connect_lazy())
    }

    fn tls(&self) -> Result<ClientTlsConfig, OptionsError> {
        let Some(file) = &self.ca_file else { return Ok(ClientTlsConfig::new().with_native_roots()) };
        let failed =
            |error: std::io::Error| OptionsError::CaFile(file.display().to_string(), error.to_string());
        let pem = std::fs::read(file).map_err(failed)?;
        Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
    }

    fn address(&self) -> Result<Endpoint, OptionsError> {
        if !["http://", "https://"].iter().any(|scheme| self.endpoint.starts_with(scheme)) {
            return Err(self.unusable(&"it does not begin with http:// or https://"));
        }
        Endpoint::from_shared(self.endpoint.clone()).map_err(|error| self.unusable(&error))
    }

    fn unusable(&self, why: &dyn std::fmt::Display) -> OptionsError {
        OptionsError::Endpoint(self.endpoint.clone(), why.to_string())
    }
}

/// Parses a sampler by the specification's name, with its argument.
fn sampler(name: Option<String>, argument: Option<String>) -> Result<Sampler, OptionsError> {
    let ratio = || {
        let Some(argument) = &argument else { return Ok(Sampler::TraceIdRatioBased(1.0)) };
        let share: Option<f64> = argument.parse().ok();
        let share = share.filter(|share| (0.0..=1.0).contains(share));
        share.map(Sampler::TraceIdRatioBased).ok_or_else(|| OptionsError::Ratio(argument.clone()))
    };
    let with_parent = |root| Sampler::ParentBased(Box::new(root));
    match name.as_deref() {
        None | Some("parentbased_always_on") => Ok(with_parent(Sampler::AlwaysOn)),
        Some("parentbased_always_off") => Ok(with_parent(Sampler::AlwaysOff)),
        Some("parentbased_traceidratio") => ratio().map(with_parent),
        Some("always_on") => Ok(Sampler::AlwaysOn),
        Some("always_off") => Ok(Sampler::AlwaysOff),
        Some("traceidratio") => ratio(),
        Some(other) => Err(OptionsError::Sampler(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn read(endpoint: &str, set: &[(&str, &str)]) -> Result<Option<(String, String)>, OptionsError> {
        let set: HashMap<_, _> = set.iter().copied().collect();
        let options = TelemetryOptions::read(endpoint, |name| set.get(name).map(|value| (*value).to_owned()));
        options.map(|options| options.map(|options| (options.endpoint, format!("{:?}", options.sampler))))
    }

    #[test]
    fn it_is_off_until_an_endpoint_is_set() {
        let there = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4317");
        let off: [&[_]; 4] = [
            &[],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", ""), ("OTEL_TRACES_SAMPLER", "always_on")],
            &[there, ("OTEL_SDK_DISABLED", "TRUE")],
            &[there, ("OTEL_TRACES_EXPORTER", "none")],
        ];
        off.iter().for_each(|set| assert_eq!(read("", set), Ok(None), "{set:?}"));
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces");
        let sampler = "ParentBased(AlwaysOn)".to_owned();
        let on = [
            ("", vec![there], "http://all:4317"),
            ("", vec![there, traces], "https://traces"),
            ("http://mine", vec![there, traces, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "http://mine"),
        ];
        for (given, set, expected) in on {
            assert_eq!(read(given, &set), Ok(Some((expected.to_owned(), sampler.clone()))), "{set:?}");
        }
    }

    #[test]
    fn samplers_are_those_of_the_standard() {
        let cases = [
            ("always_off", "", Ok("AlwaysOff")),
            ("traceidratio", "0.25", Ok("TraceIdRatioBased(0.25)")),
            ("parentbased_traceidratio", "0", Ok("ParentBased(TraceIdRatioBased(0.0))")),
            ("parentbased_always_off", "unused", Ok("ParentBased(AlwaysOff)")),
            ("traceidratio", "2", Err(OptionsError::Ratio("2".into()))),
            ("traceidratio", "NaN", Err(OptionsError::Ratio("NaN".into()))),
            ("jaeger_remote", "", Err(OptionsError::Sampler("jaeger_remote".into()))),
        ];
        for (name, argument, expected) in cases {
            let set = [("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)];
            let found = read("http://c", &set).map(|options| options.unwrap().1);
            assert_eq!(found, expected.map(str::to_owned), "{name} {argument}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        for endpoint in ["collector:4317", "ftp://collector", "http://", "http://a b"] {
            let found = read(endpoint, &[]);
            assert!(matches!(found, Err(OptionsError::Endpoint(..))), "{endpoint}: {found:?}");
        }
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        assert_eq!(read("http://c", &[http]), Err(OptionsError::Protocol("http/protobuf".into())));
        let ca_file = Some(PathBuf::from("/nowhere/ca.pem"));
        let options = TelemetryOptions { endpoint: "https://c".into(), ca_file, sampler: Sampler::AlwaysOn };
        assert!(matches!(options.channel(), Err(OptionsError::CaFile(..))));
    }
}
