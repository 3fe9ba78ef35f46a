//! Live control as JSON, as the HTTP API and the admin listener answer with it; fields without meaning are left out.

use super::audit::{Action, AuditEntry};
use serde_json::{Map, Value, json};
use weir_core::control::change::StoredControl;
use weir_core::control::{Control, Effect, Selector, Slot, Target};

/// A control, without its author and reason.
pub fn control_json(control: &Control) -> Value {
    let mut fields = place(&control.target);
    let (name, value) = name_and_value(&control.effect);
    fields.insert(name.to_owned(), value);
    if let Some(expires) = control.expires {
        fields.insert("expires_at".to_owned(), expires.0.into());
    }
    fields.insert("revision".to_owned(), control.revision.into());
    Value::Object(fields)
}

/// A control.
pub fn stored_json(stored: &StoredControl) -> Value {
    let mut answer = control_json(&stored.control);
    for (name, value) in [
        ("reason", stored.reason.as_str().into()),
        ("author", stored.author.as_str().into()),
        ("automatic", stored.automatic.into()),
        ("created_at", stored.created_at.into()),
        ("updated_at", stored.updated_at.into()),
    ] {
        put(&mut answer, name, Some(value));
    }
    answer
}

/// A change.
pub fn audited_json(change: &AuditEntry) -> Value {
    let kind = Slot::WORDS.iter().find(|(_, slot)| *slot == change.slot).map(|(word, _)| *word);
    let mut response = json!({
        "id": change.id,
        "at": change.created_at,
        "author": change.author,
        "automatic": change.automatic,
        "region": change.region,
        "action": match change.action { Action::Set => "set", Action::Deleted => "deleted" },
        "kind": kind,
        "workspace": change.workspace,
        "revision": change.revision,
        "reason": change.reason,
    });
    let scope = if change.slot == Slot::Shadow { "rule" } else { "namespace" };
    put(&mut response, scope, Some(change.scope.as_str().into()));
    let text = |text: &String| Some(Value::from(text.as_str())).filter(|_| !text.is_empty());
    put(&mut response, "identifier", text(&change.identifier));
    put(&mut response, "network", text(&change.network));
    put(&mut response, "window", (change.window_ms > 0).then(|| change.window_ms.into()));
    put(&mut response, "before", serde_json::from_str(&change.was).ok());
    put(&mut response, "after", serde_json::from_str(&change.is_now).ok());
    response
}

/// The control as JSON, for the audit.
pub fn described(stored: &StoredControl) -> String {
    let mut fields = Map::new();
    let (name, value) = name_and_value(&stored.control.effect);
    fields.insert(name.to_owned(), value);
    if let Some(expires) = stored.control.expires {
        fields.insert("expires_at".to_owned(), expires.0.into());
    }
    fields.insert("reason".to_owned(), stored.reason.as_str().into());
    fields.insert("author".to_owned(), stored.author.as_str().into());
    fields.insert("revision".to_owned(), stored.control.revision.into());
    Value::Object(fields).to_string()
}

/// An effect as a JSON field and its value.
pub fn name_and_value(effect: &Effect) -> (&'static str, Value) {
    match effect {
        Effect::Limit(limit) => ("limit", (*limit).into()),
        Effect::Exempt => ("exempt", true.into()),
        Effect::Ban => ("ban", true.into()),
        Effect::Credit(credit) => ("credit", (*credit).into()),
        Effect::Reset => ("reset", true.into()),
        Effect::Shadow(on) => ("shadow", (*on).into()),
    }
}

/// Adds a field, if it has a value.
pub fn put(response: &mut Value, name: &str, value: Option<Value>) {
    if let (Value::Object(fields), Some(value)) = (response, value) {
        fields.insert(name.to_owned(), value);
    }
}

fn place(target: &Target) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("workspace".to_owned(), target.workspace.as_str().into());
    let (scope, selector) = match &target.selector {
        Selector::Identifier(text) => ("namespace", Some(("identifier", text.clone()))),
        Selector::Network(network) => ("namespace", Some(("network", network.to_string()))),
        Selector::Rule => ("rule", None),
    };
    fields.insert(scope.to_owned(), target.scope.as_str().into());
    if let Some((name, text)) = selector {
        fields.insert(name.to_owned(), text.into());
    }
    if let Some(window_ms) = target.window_ms {
        fields.insert("window".to_owned(), window_ms.into());
    }
    fields
}
