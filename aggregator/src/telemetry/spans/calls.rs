//! Spans of calls to a store. The current task's local variable holds the span to which they belong.

use super::Active;

tokio::task_local! {
    static AROUND: Active;
}

/// Runs `work` with `span` as the parent of its calls, if there is a span.
pub async fn around<F: Future>(span: Option<&Active>, work: F) -> F::Output {
    match span {
        Some(span) => AROUND.scope(span.clone(), work).await,
        None => work.await,
    }
}

/// The parent span of the current task, to be passed to another task.
pub fn current() -> Option<Active> {
    AROUND.try_with(Active::clone).ok()
}

/// A span for Redis scripts with this many cells or logs, if the task has a parent span.
pub fn redis(scripts: usize) -> Option<Active> {
    AROUND.try_with(|around| around.scripts(scripts)).ok().flatten()
}

/// A span for one statement with this many rows, if the task has a parent span.
pub fn statement(system: &'static str, operation: &'static str, on: &str, rows: usize) -> Option<Active> {
    let call = |around: &Active| around.call(format!("{operation} {on}"));
    let call = AROUND.try_with(call).ok().flatten()?;
    call.describe(system, operation, rows);
    Some(call)
}

/// Ends a call, which may have failed.
pub fn failed(call: Option<Active>, failure: Option<&'static str>) {
    if let (Some(call), Some(reason)) = (call, failure) {
        call.fail(reason);
    }
}

impl Active {
    /// A span for Redis scripts in one pipeline, which merge or charge this many cells or logs.
    pub fn scripts(&self, scripts: usize) -> Option<Active> {
        let call = self.call("EVALSHA")?;
        call.describe("redis", "EVALSHA", scripts);
        Some(call)
    }

    /// Sets the attributes by OpenTelemetry's semantic conventions.
    fn describe(&self, system: &'static str, operation: &'static str, size: usize) {
        self.set("db.system.name", system);
        self.set("db.operation.name", operation);
        // A single item is not a batch.
        if size > 1 {
            self.set_number("db.operation.batch.size", size as u64);
        }
    }
}
