//! Tests of the `overrides` commands with an HTTP API over TLS: trusted authorities, and errors for untrusted servers.

use crate::support::http::write;
use crate::support::server::{Weir, settings, start_with};
use crate::support::tls::Authority;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Output;
use tempfile::TempDir;
use tokio::process::Command;
use weir_aggregator::api::ApiSettings;
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::net::tls::TlsFiles;
use weir_aggregator::server::Settings;

const BAN: [&str; 8] =
    ["set", "--namespace", "per-key", "--identifier", "mallory", "--ban", "--reason", "spam"];

/// A server with a certificate for `localhost`, and the authority that signed it.
struct Api {
    weir: Weir,
    /// The file with which a command trusts the server.
    ca_file: PathBuf,
    folder: TempDir,
}

impl Api {
    async fn start(mutual: bool) -> Api {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let pair = authority.sign("localhost");
        let ca_file = write(folder.path(), "ca.crt", &authority.pem());
        let tls = TlsFiles {
            certificate: write(folder.path(), "tls.crt", &pair.certificate),
            key: write(folder.path(), "tls.key", &pair.key),
            client_authorities: mutual.then(|| ca_file.clone()),
        };
        let api = ApiSettings { tls: Some(tls), ..settings().api };
        Api { weir: start(api, &folder).await, ca_file, folder }
    }

    fn port(&self) -> u16 {
        self.weir.server.http_address().unwrap().port()
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.port())
    }

    /// The output of a command that trusts the server.
    async fn trusting(&self, arguments: &[&str]) -> String {
        let output = command(arguments, &self.url()).arg("--api-ca-file").arg(&self.ca_file).output();
        let Output { status, stdout, stderr } = output.await.unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success() && stderr.is_empty(), "{arguments:?}: {stdout}{stderr}");
        stdout.into_owned()
    }

    async fn in_force(&self) -> usize {
        let listed: Value = serde_json::from_str(&self.trusting(&["list", "--json"]).await).unwrap();
        listed.as_array().unwrap().len()
    }
}

async fn start(api: ApiSettings, folder: &TempDir) -> Weir {
    let url = format!("sqlite://{}/weir.db", folder.path().display());
    let database = Some(DatabaseOptions { url, read_url: None, region: "test-region".into() });
    start_with(Settings { api, database, migrate: true, ..settings() }).await
}

fn command(arguments: &[&str], server: &str) -> Command {
    let variables = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("WEIR_"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-aggregator"));
    command.arg("overrides").args(arguments).env_clear().envs(variables);
    command.env("WEIR_API_URL", server).kill_on_drop(true);
    command
}

/// Expects the command to fail with an error in one line.
async fn fails(mut command: Command, parts: &[&str]) {
    let Output { status, stdout, stderr } = command.output().await.unwrap();
    let error = String::from_utf8_lossy(&stderr);
    println!("{error}");
    assert_eq!((status.code(), stdout.is_empty()), (Some(1), true), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    parts.iter().for_each(|part| assert!(error.contains(part), "no {part:?} in {error}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_trusted_whose_authority_is_named() {
    let api = Api::start(false).await;
    assert!(api.trusting(&BAN).await.starts_with("ban for mallory in per-key"));
    assert_eq!(api.in_force().await, 1);
    let mut by_variable = command(&["list"], &api.url());
    let listed = by_variable.env("WEIR_API_CA_FILE", &api.ca_file).output().await.unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("mallory"), "{listed:?}");
    let deleted = api.trusting(&["delete", "--namespace", "per-key", "--identifier", "mallory"]).await;
    assert!(deleted.starts_with("deleted: ban for mallory"), "{deleted}");
    assert_eq!(api.in_force().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_untrusted_server_receives_no_request() {
    let api = Api::start(false).await;
    api.trusting(&BAN).await;
    let other = write(api.folder.path(), "other.crt", &Authority::new().pem());
    let exempt = ["set", "--namespace", "per-key", "--identifier", "mallory", "--exempt"];
    let delete = ["delete", "--namespace", "per-key", "--identifier", "mallory"];
    let hint = ["--api-ca-file", "WEIR_API_CA_FILE"];
    for arguments in [&exempt[..], &delete, &["list"]] {
        let mut strange = command(arguments, &api.url());
        strange.arg("--api-ca-file").arg(&other);
        fails(strange, &[&api.url(), "is not trusted", hint[0], hint[1]]).await;
        // With the system's authorities, if it has any.
        fails(command(arguments, &api.url()), &hint).await;
    }
    // The certificate is issued for another name.
    let mut misnamed = command(&exempt, &format!("https://127.0.0.1:{}", api.port()));
    misnamed.arg("--api-ca-file").arg(&api.ca_file);
    fails(misnamed, &["is not trusted", "127.0.0.1", "localhost"]).await;
    let listed = api.trusting(&["list"]).await;
    assert!(listed.contains("ban") && !listed.contains("exempt"), "nothing has changed: {listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_errors_of_tls_state_their_cause() {
    let api = Api::start(false).await;
    let with = |ca_file: PathBuf, server: &str| {
        let mut command = command(&["list"], server);
        command.arg("--api-ca-file").arg(ca_file);
        command
    };
    let put = |name: &str, text: &str| write(api.folder.path(), name, text);
    let nowhere = api.folder.path().join("nowhere.crt");
    fails(with(nowhere, &api.url()), &["nowhere.crt", "--api-ca-file"]).await;
    fails(with(put("empty.crt", ""), &api.url()), &["empty.crt", "--api-ca-file"]).await;
    fails(with(put("broken.crt", "no PEM"), &api.url()), &["broken.crt", "--api-ca-file"]).await;
    // One side uses TLS, the other does not.
    let plain_url = format!("http://localhost:{}", api.port());
    fails(command(&["list"], &plain_url), &[&plain_url, "https://"]).await;
    let folder = tempfile::tempdir().unwrap();
    let plain = start(ApiSettings::default(), &folder).await;
    let SocketAddr::V4(address) = plain.server.http_address().unwrap() else { panic!("an IPv4 address") };
    let url = format!("https://localhost:{}", address.port());
    fails(with(api.ca_file.clone(), &url), &[&url, "http://"]).await;
    // The commands have no client certificate.
    let mutual = Api::start(true).await;
    fails(with(mutual.ca_file.clone(), &mutual.url()), &[&mutual.url(), "--tls-client-ca-file"]).await;
}
