//! Whether the servers evict keys when they are full. Such a server loses counts without an error.

use super::Store;
use super::command::Command;
use super::error::StoreError;
use redis::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// The policy with which a full server refuses writes.
const NONE: &str = "noeviction";

impl Store {
    /// For each marker whose server answered, the policy by which that evicts keys, such as `allkeys-lru`, if it does.
    pub async fn eviction_policies(&self, within: Duration) -> BTreeMap<usize, Option<String>> {
        let commands = self.inner.markers.names().iter().map(|name| {
            let mut what = redis::cmd("INFO");
            what.arg("memory");
            Command::on(name, what)
        });
        let answers = self.run(commands.collect(), within).await;
        let policies = answers.into_iter().enumerate();
        policies.filter_map(|(place, answer)| Some((place, policy(&answer.ok()?).ok()?))).collect()
    }
}

/// The policy by which a server evicts keys. Without a bound of its memory it evicts none, whatever its policy is.
fn policy(answer: &Value) -> Result<Option<String>, StoreError> {
    let text = match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| StoreError::Protocol)?,
        Value::VerbatimString { text, .. } => text.as_str(),
        _ => return Err(StoreError::Protocol),
    };
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim)
    };
    let policy = field("maxmemory_policy").ok_or(StoreError::Protocol)?;
    let evicts = policy != NONE && field("maxmemory") != Some("0");
    Ok(evicts.then(|| policy.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_counts_if_the_memory_is_bounded() {
        let of = |text: &str| policy(&Value::BulkString(text.into()));
        let memory = |bytes: &str, policy: &str| {
            format!(
                "# Memory\r\nused_memory:1\r\nmaxmemory:{bytes}\r\nmaxmemory_human:0B\r\nmaxmemory_policy:{policy}\r\n"
            )
        };
        let evicts = Ok(Some("allkeys-lru".to_owned()));
        assert_eq!(of(&memory("1048576", "allkeys-lru")), evicts);
        assert_eq!(of(&memory("0", "allkeys-lru")), Ok(None));
        assert_eq!(of(&memory("1048576", "noeviction")), Ok(None));
        assert_eq!(of("maxmemory_policy:allkeys-lru\r\n"), evicts, "a server that does not state its bound");
        for malformed in [of("# Memory\r\n"), of("maxmemory:1\r\n"), policy(&Value::Nil)] {
            assert_eq!(malformed, Err(StoreError::Protocol));
        }
    }
}
