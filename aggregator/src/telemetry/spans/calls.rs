//! What is asked of a store, as spans beneath whatever asks: the task at hand says what that is.
//!
//! Leaves to others: the calls.

use super::Active;

tokio::task_local! {
    static AROUND: Active;
}

/// Does something beneath `span`, if there is one.
pub async fn around<F: Future>(span: Option<&Active>, work: F) -> F::Output {
    match span {
        Some(span) => AROUND.scope(span.clone(), work).await,
        None => work.await,
    }
}

/// What the task at hand works beneath, for another task that goes on with it.
pub fn current() -> Option<Active> {
    AROUND.try_with(Active::clone).ok()
}

/// So many scripts, if they are asked beneath a span.
pub fn redis(scripts: usize) -> Option<Active> {
    AROUND.try_with(|around| around.scripts(scripts)).ok().flatten()
}

/// One statement, of so many rows, if it is asked beneath a span.
pub fn statement(system: &'static str, operation: &'static str, on: &str, rows: usize) -> Option<Active> {
    let call = |around: &Active| around.call(format!("{operation} {on}"));
    let call = AROUND.try_with(call).ok().flatten()?;
    call.describe(system, operation, rows);
    Some(call)
}

/// A call is over, and may have failed.
pub fn failed(call: Option<Active>, failure: Option<&'static str>) {
    if let (Some(call), Some(reason)) = (call, failure) {
        call.fail(reason);
    }
}

impl Active {
    /// So many scripts of Redis in one pipeline.
    pub fn scripts(&self, scripts: usize) -> Option<Active> {
        let call = self.call("EVALSHA")?;
        call.describe("redis", "EVALSHA", scripts);
        Some(call)
    }

    /// As the semantic conventions of OpenTelemetry have it.
    fn describe(&self, system: &'static str, operation: &'static str, size: usize) {
        self.set("db.system.name", system);
        self.set("db.operation.name", operation);
        // One alone is no batch.
        if size > 1 {
            self.set_number("db.operation.batch.size", size as u64);
        }
    }
}
