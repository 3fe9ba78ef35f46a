//! Whether the servers evict keys when they are full. Such a server loses counts without an error.

use super::Store;
use super::command::Command;
use redis::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// The policy with which a full server refuses writes.
const NONE: &str = "noeviction";

impl Store {
    /// The eviction policies of the servers that evict keys, such as `allkeys-lru`; `None` if no server answered.
    pub async fn eviction_policies(&self, within: Duration) -> Option<BTreeSet<String>> {
        let commands = self.inner.markers.iter().map(|name| {
            let mut what = redis::cmd("INFO");
            what.arg("memory");
            Command::on(name, what)
        });
        let answers = self.run(commands.collect(), within).await;
        let policies: BTreeSet<_> = answers.into_iter().filter_map(|answer| policy(&answer.ok()?)).collect();
        (!policies.is_empty()).then(|| policies.into_iter().filter(|policy| policy != NONE).collect())
    }
}

fn policy(answer: &Value) -> Option<String> {
    let text = match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } => text.as_str(),
        _ => return None,
    };
    let field = text.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"))?;
    Some(field.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_a_field_among_others() {
        let of = |text: &str| policy(&Value::BulkString(text.into()));
        assert_eq!(
            of("# Memory\r\nused_memory:1\r\nmaxmemory_policy:allkeys-lru\r\n").as_deref(),
            Some("allkeys-lru")
        );
        assert_eq!((of("# Memory\r\n"), policy(&Value::Nil)), (None, None));
    }
}
