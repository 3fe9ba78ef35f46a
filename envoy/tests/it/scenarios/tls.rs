//! Mutual TLS between filters and their aggregator.

use super::common::{SOON, config, connected, filter, get_as, rule, settled, sound, total_in};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::path::{Path, PathBuf};
use weir_envoy::bootstrap::UpstreamTls;
use weir_envoy::{Aggregator, AggregatorOptions, Envoy, EnvoyOptions, wait};

/// The files of a CA and of the certificates that it signed.
struct Files {
    authority: PathBuf,
    server: (PathBuf, PathBuf),
    client: (PathBuf, PathBuf),
}

impl Files {
    fn make(folder: &Path) -> Files {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "authority.test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let put = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let sign = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            // A certificate whose subject equals its issuer would count as self-signed.
            params.distinguished_name.push(DnType::CommonName, name);
            let signed = params.signed_by(&key, &authority).unwrap();
            (put(&format!("{name}.crt"), signed.pem()), put(&format!("{name}.key"), key.serialize_pem()))
        };
        let (server, client) = (sign("aggregator.test"), sign("envoy.test"));
        Files { authority: put("ca.crt", authority.pem()), server, client }
    }

    fn text(path: &Path) -> String {
        path.to_string_lossy().into_owned()
    }

    fn upstream(&self, own: bool) -> UpstreamTls {
        let name = "aggregator.test".to_owned();
        UpstreamTls { authority: self.authority.clone(), name, own: own.then(|| self.client.clone()) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_reach_their_aggregator_over_mutual_tls_and_only_with_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::make(folder.path());
    let arguments = [
        ("--tls-cert-file", &files.server.0),
        ("--tls-key-file", &files.server.1),
        ("--tls-client-ca-file", &files.authority),
    ];
    let arguments =
        arguments.into_iter().flat_map(|(name, path)| [name.to_owned(), Files::text(path)]).collect();
    let aggregator =
        Aggregator::start(AggregatorOptions { arguments, ..AggregatorOptions::default() }).await.unwrap();
    let rules = config(&[rule("keys", 5)]);
    let start = async |own: bool| {
        let options = EnvoyOptions {
            filter: filter(&rules),
            aggregator_ports: vec![aggregator.grpc_port()],
            aggregator_tls: Some(files.upstream(own)),
            ..EnvoyOptions::default()
        };
        Envoy::start(options).await.unwrap()
    };
    let (first, second) = (start(true).await, start(true).await);
    for envoy in [&first, &second] {
        connected(envoy).await;
        settled(envoy).await;
    }
    for _ in 0..5 {
        assert_eq!(first.send(get_as("a")).await.unwrap().status, 200);
    }
    let counted = async || total_in(&aggregator, "keys", "a").await == 5;
    wait::until("the region has the count", SOON, counted).await.unwrap();
    let refused = async || second.send(get_as("a")).await.unwrap().status == 429;
    wait::until("the other Envoy denies", SOON, refused).await.unwrap();
    assert_eq!(total_in(&aggregator, "keys", "a").await, 5);

    let without_certificate = start(false).await;
    let failed = async || {
        let metrics = aggregator.admin_get("/metrics").await.unwrap().text();
        let prefix = "weir_aggregator_handshakes_failed_total{api=\"grpc\"} ";
        metrics.lines().any(|line| line.strip_prefix(prefix).is_some_and(|number| number != "0"))
    };
    wait::until("the Envoy without a certificate is refused", SOON, failed).await.unwrap();
    assert_eq!(without_certificate.stat("wasmcustom.weir_streams_connected").await.unwrap(), 0);
    assert_eq!(without_certificate.send(get_as("b")).await.unwrap().status, 200, "it continues alone");
    sound(&first).await;
    sound(&second).await;
}
