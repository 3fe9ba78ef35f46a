//! Tests of TLS and mutual TLS: real clients, reloaded certificates, peers that do not finish a handshake, and invalid
//! files.

use crate::support::http::{Client, start_apis, write};
use crate::support::server::{DEADLINE, Peer, Weir, hello_frame, settings, start_with, until};
use crate::support::tls::{Authority, Pair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use weir_aggregator::api::ApiSettings;
use weir_aggregator::net::tls::TlsFiles;
use weir_aggregator::server::{Server, Settings};

/// Longer than the handshake timeout.
const CUT_WITHIN: Duration = Duration::from_secs(12);

fn files(folder: &Path, pair: &Pair, clients: Option<&Authority>) -> TlsFiles {
    TlsFiles {
        certificate: write(folder, "tls.crt", &pair.certificate),
        key: write(folder, "tls.key", &pair.key),
        client_authorities: clients.map(|authority| write(folder, "ca.crt", &authority.pem())),
    }
}

async fn serve(files: TlsFiles) -> Weir {
    start_apis(ApiSettings { tls: Some(files), ..ApiSettings::default() }).await
}

/// A server with a certificate of a new authority. With `mutual`, clients need a certificate of the same authority.
async fn start_tls(mutual: bool) -> (Weir, Authority, TempDir) {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let files = files(folder.path(), &authority.sign("localhost"), mutual.then_some(&authority));
    (serve(files).await, authority, folder)
}

async fn connect(
    address: SocketAddr,
    trusted: &Authority,
    own: Option<&Pair>,
    alpn: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(Pair { certificate, key }) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            builder
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
                .unwrap()
        }
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost").unwrap();
    let socket = TcpStream::connect(address).await.unwrap();
    timeout(DEADLINE, connector.connect(name, socket)).await.unwrap()
}

/// Whether the HTTP API answers this client. With TLS 1.3, a rejection arrives after the client's side of the
/// handshake.
async fn is_served(weir: &Weir, trusted: &Authority, own: Option<&Pair>) -> bool {
    let Ok(mut stream) = connect(weir.server.http_address().unwrap(), trusted, own, b"http/1.1").await else {
        return false;
    };
    let request = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut received = Vec::new();
    let _ = stream.write_all(request).await;
    let _ = timeout(DEADLINE, stream.read_to_end(&mut received)).await.unwrap();
    received.starts_with(b"HTTP/1.1 200 OK")
}

async fn grpc(
    weir: &Weir,
    trusted: &Authority,
    own: Option<&Pair>,
) -> Result<Channel, tonic::transport::Error> {
    let mut tls =
        ClientTlsConfig::new().domain_name("localhost").ca_certificate(Certificate::from_pem(trusted.pem()));
    if let Some(Pair { certificate, key }) = own {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    let uri = format!("https://{}", weir.server.grpc_address());
    Endpoint::from_shared(uri).unwrap().tls_config(tls).unwrap().connect().await
}

async fn is_welcomed(weir: &Weir, trusted: &Authority, own: Option<&Pair>) -> bool {
    let Ok(channel) = grpc(weir, trusted, own).await else { return false };
    let mut client = tonic::client::Grpc::new(channel.clone());
    if client.ready().await.is_err() {
        return false;
    }
    let mut peer = Peer::open(channel).await;
    peer.send(hello_frame(1, false)).await;
    peer.next_with(|frame| frame.welcome).await;
    true
}

#[tokio::test]
async fn both_apis_serve_tls_alone() {
    let (weir, authority, _folder) = start_tls(false).await;
    assert!(is_served(&weir, &authority, None).await);
    assert!(is_welcomed(&weir, &authority, None).await);
    assert!(
        !is_served(&weir, &Authority::new(), None).await,
        "a client that trusts another authority must not connect"
    );
    assert!(connect(weir.server.http_address().unwrap(), &authority, None, b"h2").await.is_err());
    assert!(connect(weir.server.grpc_address(), &authority, None, b"http/1.1").await.is_err());
    let mut plain = TcpStream::connect(weir.server.http_address().unwrap()).await.unwrap();
    plain.write_all(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut received = Vec::new();
    let _ = timeout(DEADLINE, plain.read_to_end(&mut received)).await.unwrap();
    assert!(!received.starts_with(b"HTTP"), "plain text is not answered");
    let ends = weir.metric("weir_aggregator_certificate_not_after_seconds{use=\"server\"}");
    // The test's certificates end in the year 4096.
    assert!(ends > 60e9, "{ends}");
}

#[tokio::test]
async fn with_client_authorities_only_their_clients_are_served() {
    let (weir, authority, _folder) = start_tls(true).await;
    let (trusted, untrusted) = (authority.sign("filter"), Authority::new().sign("filter"));
    assert!(is_served(&weir, &authority, Some(&trusted)).await);
    assert!(is_welcomed(&weir, &authority, Some(&trusted)).await);
    for own in [None, Some(&untrusted)] {
        assert!(!is_served(&weir, &authority, own).await);
        assert!(
            grpc(&weir, &authority, own).await.is_err() || !is_welcomed_soon(&weir, &authority, own).await
        );
    }
    until("refused handshakes are counted", || {
        weir.metric("weir_aggregator_handshakes_failed_total{api=\"http\"}") >= 2.0
            && weir.metric("weir_aggregator_handshakes_failed_total{api=\"grpc\"}") >= 2.0
    })
    .await;
    assert!(is_welcomed(&weir, &authority, Some(&trusted)).await);
}

/// The status of a call to the HTTP API, and the code of its error.
async fn checked(weir: &Weir, trusted: &Authority, own: &Pair, body: &str) -> String {
    let address = weir.server.http_address().unwrap();
    let mut stream = connect(address, trusted, Some(own), b"http/1.1").await.unwrap();
    let length = body.len();
    let head =
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(DEADLINE, stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn names_in_certificates_have_workspaces_and_roles() {
    const GATEWAY: &str = "spiffe://example.org/gateway";
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let tls = Some(files(folder.path(), &authority.sign("localhost"), Some(&authority)));
    let entries = format!(
        "- {{name: shop, san: Shop.Example, workspace: one, namespaces: all}}\n\
         - {{name: gateways, san: \"{GATEWAY}\", workspaces: [default]}}\n"
    );
    let tokens_file = Some(write(folder.path(), "tokens.yaml", &entries));
    let weir = start_apis(ApiSettings { tls, tokens_file, ..ApiSettings::default() }).await;
    let (shop, gateway) = (authority.sign("SHOP.example"), authority.sign_uri(GATEWAY));
    let unmapped = authority.sign("unmapped.example");
    let body = |workspace: &str| {
        format!(r#"{{"workspace": "{workspace}", "identifier": "a", "limit": 5, "duration": "1h"}}"#)
    };
    for (own, workspace, expected) in [
        (&shop, "one", "200 OK"),
        (&shop, "two", "workspace_not_allowed"),
        (&unmapped, "one", "token_missing"),
        (&gateway, "default", "credential_of_a_filter"),
    ] {
        let answer = checked(&weir, &authority, own, &body(workspace)).await;
        assert!(answer.contains(expected), "{workspace}: {answer}");
    }
    // An authority that lets clients choose DNS names gives away no URI, nor the other way round.
    let disguised = authority.sign_as_dns(&[GATEWAY]);
    let answer = checked(&weir, &authority, &authority.sign_uri("shop.example"), &body("one")).await;
    assert!(answer.contains("token_missing"), "{answer}");
    for (own, expected) in [(&shop, false), (&unmapped, false), (&disguised, false), (&gateway, true)] {
        let channel = grpc(&weir, &authority, Some(own)).await.unwrap();
        let mut peer = Peer::try_open(channel, None).await.unwrap();
        let _ = peer.try_send(hello_frame(1, false));
        let first = peer.next().await.unwrap().unwrap();
        assert_eq!((first.welcome.is_some(), first.error.is_none()), (expected, expected), "{first:?}");
    }
}

/// Where clients' certificates alone guard the streams of filters, an application's opens none, whatever token it sends beside it.
#[tokio::test]
async fn an_applications_certificate_opens_no_stream() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let tls = Some(files(folder.path(), &authority.sign("localhost"), Some(&authority)));
    let entry = "- {name: shop, san: shop.example, workspace: one, namespaces: all}\n";
    let tokens_file = Some(write(folder.path(), "tokens.yaml", entry));
    let weir = start_apis(ApiSettings { tls, tokens_file, ..ApiSettings::default() }).await;
    let (shop, filter) = (authority.sign("shop.example"), authority.sign("filter.example"));
    for (own, token, expected) in
        [(&shop, None, false), (&shop, Some("weir_unknown"), false), (&filter, None, true)]
    {
        let channel = grpc(&weir, &authority, Some(own)).await.unwrap();
        let mut peer = Peer::try_open(channel, token).await.unwrap();
        let _ = peer.try_send(hello_frame(1, false));
        let first = peer.next().await.unwrap().unwrap();
        assert_eq!((first.welcome.is_some(), first.error.is_none()), (expected, expected), "{first:?}");
    }
}

/// Like `is_welcomed`, for clients whose rejection arrives with the first call.
async fn is_welcomed_soon(weir: &Weir, trusted: &Authority, own: Option<&Pair>) -> bool {
    let Ok(channel) = grpc(weir, trusted, own).await else { return false };
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.is_ok() && {
        let path = tonic::codegen::http::uri::PathAndQuery::from_static("/weir.v1.Region/Follow");
        let codec = tonic_prost::ProstCodec::<
            weir_core::model::wire::FilterFrame,
            weir_core::model::wire::RegionFrame,
        >::default();
        let frames = tokio_stream::iter([hello_frame(1, false)]);
        client.streaming(tonic::Request::new(frames), path, codec).await.is_ok()
    }
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections_and_a_broken_one_for_none() {
    let (folder, old, new) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    // As Kubernetes mounts secrets: the files are links through a directory link that is swapped.
    let put = |version: &str, pair: &Pair| {
        let versioned = folder.path().join(version);
        std::fs::create_dir(&versioned).unwrap();
        write(&versioned, "tls.crt", &pair.certificate);
        write(&versioned, "tls.key", &pair.key);
        symlink(version, folder.path().join("new")).unwrap();
        std::fs::rename(folder.path().join("new"), folder.path().join("data")).unwrap();
    };
    put("1", &old.sign("localhost"));
    let path = |name: &str| folder.path().join("data").join(name);
    let files = TlsFiles { certificate: path("tls.crt"), key: path("tls.key"), client_authorities: None };
    let weir = serve(files).await;
    let stream = connect(weir.server.http_address().unwrap(), &old, None, b"http/1.1").await.unwrap();
    let mut kept = Client::over(stream).await;
    assert_eq!(kept.send("GET", "/openapi.json", &[], b"").await.status, 200);
    let read = |result: &str| {
        weir.metric(&format!("weir_aggregator_files_read_total{{files=\"tls\",result=\"{result}\"}}"))
    };
    let stale = || weir.metric("weir_aggregator_files_stale{files=\"tls\"}");

    put("2", &Pair { key: new.sign("localhost").key, ..new.sign("localhost") });
    until("the broken pair is seen", || read("failed") == 1.0).await;
    assert_eq!((stale(), is_served(&weir, &old, None).await), (1.0, true));

    put("expired", &old.sign_expired("localhost"));
    until("the expired certificate is refused", || read("failed") == 2.0).await;
    assert_eq!((stale(), is_served(&weir, &old, None).await), (1.0, true));

    put("3", &new.sign("localhost"));
    until("the new pair is read", || read("ok") == 1.0).await;
    assert_eq!((stale(), read("failed")), (0.0, 2.0));
    assert!(is_served(&weir, &new, None).await && !is_served(&weir, &old, None).await);
    assert!(is_welcomed(&weir, &new, None).await);
    assert_eq!(
        kept.send("GET", "/openapi.json", &[], b"").await.status,
        200,
        "open connections must continue"
    );
}

#[tokio::test]
async fn an_authority_of_clients_is_removed_whatever_is_wrong_with_the_certificate() {
    let (folder, kept, removed) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let pair = kept.sign("localhost");
    let files = files(folder.path(), &pair, Some(&kept));
    write(folder.path(), "ca.crt", &(kept.pem() + &removed.pem()));
    let weir = serve(files.clone()).await;
    let (client, refused) = (kept.sign("filter"), removed.sign("filter"));
    assert!(is_served(&weir, &kept, Some(&client)).await && is_served(&weir, &kept, Some(&refused)).await);
    let expired = kept.sign_expired("localhost");
    write(folder.path(), "tls.crt", &expired.certificate);
    write(folder.path(), "tls.key", &expired.key);
    write(folder.path(), "ca.crt", &kept.pem());
    let gone = async || !is_served(&weir, &kept, Some(&refused)).await;
    weir_envoy::wait::until("clients of the removed authority are refused", DEADLINE, gone).await.unwrap();
    let read = |files: &str, result: &str| {
        weir.metric(&format!("weir_aggregator_files_read_total{{files=\"{files}\",result=\"{result}\"}}"))
    };
    until("the expired certificate is refused", || read("tls", "failed") == 1.0).await;
    assert_eq!((read("tls", "ok"), read("client_authorities", "ok")), (0.0, 1.0));
    assert!(is_served(&weir, &kept, Some(&client)).await, "the former certificate stays in force");

    // Authorities that cannot be read stay, and do not hold back a certificate.
    write(folder.path(), "ca.crt", "");
    write(folder.path(), "tls.crt", &pair.certificate);
    write(folder.path(), "tls.key", &pair.key);
    until("both are handled", || read("client_authorities", "failed") == 1.0 && read("tls", "ok") == 1.0)
        .await;
    assert!(is_served(&weir, &kept, Some(&client)).await && !is_served(&weir, &kept, Some(&refused)).await);
}

#[tokio::test]
async fn an_expired_certificate_is_replaced_by_any() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let weir = serve(files(folder.path(), &authority.sign_expired("localhost"), None)).await;
    let other = authority.sign_expired("localhost");
    write(folder.path(), "tls.crt", &other.certificate);
    write(folder.path(), "tls.key", &other.key);
    let taken = "weir_aggregator_files_read_total{files=\"tls\",result=\"ok\"}";
    until("it is taken", || weir.metric(taken) == 1.0).await;
}

#[tokio::test]
async fn unfinished_handshakes_are_cut_and_delay_no_client() {
    let (weir, authority, _folder) = start_tls(false).await;
    let mut stuck = Vec::new();
    for address in [weir.server.http_address().unwrap(), weir.server.grpc_address()] {
        for bytes in [b"".as_slice(), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"] {
            for _ in 0..50 {
                let mut socket = TcpStream::connect(address).await.unwrap();
                socket.write_all(bytes).await.unwrap();
                stuck.push(socket);
            }
        }
    }
    let held = |api: &str| weir.metric(&format!("weir_aggregator_connections{{api=\"{api}\"}}"));
    until("all are taken", || held("http") >= 100.0 && held("grpc") >= 100.0).await;
    assert!(is_served(&weir, &authority, None).await);
    assert!(is_welcomed(&weir, &authority, None).await);
    // Stuck handshakes have 5 s.
    assert!(held("http") >= 100.0 && held("grpc") >= 100.0, "stuck connections must not delay others");
    for mut socket in stuck {
        let mut received = Vec::new();
        let _ =
            timeout(CUT_WITHIN, socket.read_to_end(&mut received)).await.expect("a connection is still held");
    }
    until("all connections are closed", || weir.metric("weir_aggregator_connections{api=\"http\"}") == 0.0)
        .await;
}

#[tokio::test]
async fn a_grpc_client_without_a_preface_is_cut() {
    let weir = start_with(settings()).await;
    let mut idle = TcpStream::connect(weir.server.grpc_address()).await.unwrap();
    let mut slow = TcpStream::connect(weir.server.grpc_address()).await.unwrap();
    slow.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    for socket in [&mut idle, &mut slow] {
        let mut received = Vec::new();
        let _ = timeout(CUT_WITHIN, socket.read_to_end(&mut received))
            .await
            .expect("the connection is still held");
    }
    weir.join(1, false).await;
}

#[tokio::test]
async fn files_that_are_wrong_are_named() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let pair = authority.sign("localhost");
    let check = async |change: &dyn Fn(&mut TlsFiles), parts: &[&str]| {
        let mut files = files(folder.path(), &pair, Some(&authority));
        change(&mut files);
        let api = ApiSettings { tls: Some(files), ..ApiSettings::default() };
        let clock = Arc::new(crate::support::server::ShiftedClock::default());
        let error = match Server::start(Settings { api, ..settings() }, clock).await {
            Ok(_) => panic!("the server must not start: {parts:?}"),
            Err(error) => error.to_string(),
        };
        parts.iter().for_each(|part| assert!(error.contains(part), "{error}"));
    };
    let put = |name: &str, text: &str| write(folder.path(), name, text);
    check(&|files| files.certificate = folder.path().join("none"), &["none", "--tls-cert-file"]).await;
    check(&|files| files.key = folder.path().to_owned(), &["it is not a regular file", "--tls-key-file"])
        .await;
    check(&|files| files.certificate = put("empty", ""), &["empty", "no certificate", "WEIR_TLS_CERT_FILE"])
        .await;
    check(&|files| files.key = put("empty", ""), &["no private key", "WEIR_TLS_KEY_FILE"]).await;
    check(&|files| files.key = files.certificate.clone(), &["no private key"]).await;
    check(
        &|files| files.key = put("other", &authority.sign("localhost").key),
        &["not the key of", "tls.crt"],
    )
    .await;
    check(
        &|files| files.client_authorities = Some(put("empty", "")),
        &["no certificate", "WEIR_TLS_CLIENT_CA_FILE"],
    )
    .await;
    let broken = pair.certificate.replace("\nMII", "\n!!!");
    check(&|files| files.certificate = put("broken", &broken), &["broken", "--tls-cert-file"]).await;
}
