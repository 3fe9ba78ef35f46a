//! The `overrides` commands: live control through an aggregator's HTTP API.
//!
//! In reading order: `arguments`, `client` (requests), `trust` (TLS), `show` (output).

mod arguments;
mod client;
mod show;
mod trust;

pub use arguments::Overrides;

use crate::cli::outcome::{UNUSABLE, fail, plain_json, print};
use anyhow::bail;
use arguments::{Kind, Listed, Place, Server, Why, kind_of};
use client::{NoControl, call, with_query};
use hyper::Method;
use serde_json::Value;
use std::process::ExitCode;

const PATH: &str = "/v1/overrides";
const AUDIT: &str = "/v1/overrides/audit";
/// The field that every answer to a change has.
const REVISION: &str = "revision";
/// Entries requested at a time.
const PAGE: usize = 1_000;
/// Most pages; there cannot be as many.
const MAX_PAGES: usize = 20;

/// Runs a command and reports the result.
#[tokio::main(flavor = "current_thread")]
pub async fn run(command: Overrides) -> ExitCode {
    if let Some(what) = command.unconfirmed() {
        return fail(&format!("this would {what}; add --yes to confirm"), UNUSABLE);
    }
    match perform(command).await {
        Ok(text) => {
            print(&text.trim_end_matches('\n'));
            ExitCode::SUCCESS
        }
        Err(error) => fail(&format!("{error:#}"), 1),
    }
}

async fn perform(command: Overrides) -> anyhow::Result<String> {
    match command {
        Overrides::List { server, which, kind, matching } => {
            let matching = matching.map(|text| ("matching", text));
            let of_kind = kind_of(kind.map(Listed::kind));
            let pairs: Vec<_> = which.pairs().into_iter().chain(of_kind).chain(matching).collect();
            let mut found = list(&server, pairs).await?;
            found.retain(|entry| kind.is_none_or(|kind| kind.has(entry)));
            found.reverse();
            Ok(output(&server, &Value::from(found.clone()), || show::overrides(&found)))
        }
        Overrides::Set(set) => put(&set.server, &set.body()).await,
        Overrides::Credit { server, place, amount, when } => {
            let mut fields = place.fields();
            fields.insert("credit".to_owned(), amount.into());
            when.put(&mut fields);
            put(&server, &Value::Object(fields)).await
        }
        Overrides::Reset { server, place, why, .. } => {
            let mut fields = place.fields();
            fields.insert("reset".to_owned(), true.into());
            why.put(&mut fields);
            put(&server, &Value::Object(fields)).await
        }
        Overrides::Delete { server, place, all_kinds: true, why, .. } => {
            delete_all(&server, &place, &why).await
        }
        Overrides::Delete { server, place, kind, why, .. } => delete(&server, &place, kind, &why).await,
        Overrides::Audit { server, which, author, limit } => {
            let author = author.map(|author| ("author", author));
            let limit = [("limit", limit.to_string())];
            let pairs: Vec<_> = which.pairs().into_iter().chain(author).chain(limit).collect();
            let mut answer = call(&server, Method::GET, &with_query(AUDIT, &pairs), None, "changes").await?;
            let found = entries(&mut answer, "changes");
            Ok(output(&server, &Value::from(found.clone()), || show::audit(&found)))
        }
    }
}

async fn put(server: &Server, body: &Value) -> anyhow::Result<String> {
    let answer = call(server, Method::PUT, PATH, Some(body), REVISION).await?;
    Ok(output(server, &answer, || show::changed(&answer)))
}

async fn delete(server: &Server, place: &Place, kind: Option<Kind>, why: &Why) -> anyhow::Result<String> {
    let pairs: Vec<_> = place.pairs().into_iter().chain(kind_of(kind)).chain(why.pairs()).collect();
    let answered = call(server, Method::DELETE, &with_query(PATH, &pairs), None, REVISION).await;
    match answered {
        Err(error) if error.is::<NoControl>() => {
            let found = list(server, place.pairs_of_all_windows()).await?;
            bail!("{}", show::instead(&found))
        }
        answered => {
            let answer = answered?;
            Ok(output(server, &answer, || show::changed(&answer)))
        }
    }
}

/// Deletes every control of the target, each by its own kind and window.
async fn delete_all(server: &Server, place: &Place, why: &Why) -> anyhow::Result<String> {
    let found = list(server, place.pairs_of_all_windows()).await?;
    if found.is_empty() {
        bail!("{}", show::instead(&found));
    }
    let mut answers = Vec::new();
    for entry in &found {
        let window = entry["window"].as_u64().map(|ms| ("window", ms.to_string()));
        let kind = Some(("kind", show::kind(entry).to_owned()));
        let pairs = place.pairs_of_all_windows().into_iter().chain(kind).chain(window);
        let pairs: Vec<_> = pairs.chain(why.pairs()).collect();
        answers.push(call(server, Method::DELETE, &with_query(PATH, &pairs), None, REVISION).await?);
    }
    Ok(output(server, &Value::from(answers.clone()), || answers.iter().map(show::changed).collect()))
}

async fn list(server: &Server, pairs: Vec<(&'static str, String)>) -> anyhow::Result<Vec<Value>> {
    let (mut found, mut after) = (Vec::new(), None);
    for _ in 0..MAX_PAGES {
        let page = [("limit", PAGE.to_string())];
        let pairs: Vec<_> = pairs.iter().cloned().chain(page).chain(after).collect();
        let mut answer = call(server, Method::GET, &with_query(PATH, &pairs), None, "overrides").await?;
        found.extend(entries(&mut answer, "overrides"));
        match answer["next"].as_u64() {
            Some(next) => after = Some(("after", next.to_string())),
            None => break,
        }
    }
    Ok(found)
}

fn entries(answer: &mut Value, name: &str) -> Vec<Value> {
    match answer.get_mut(name).map(Value::take) {
        Some(Value::Array(entries)) => entries,
        _ => Vec::new(),
    }
}

fn output(server: &Server, answer: &Value, text: impl FnOnce() -> String) -> String {
    if server.json { plain_json(&answer.to_string()) + "\n" } else { text() }
}
