//! The export of spans to the collector: one bounded queue, one task.
//!
//! An unavailable, slow or malicious collector costs only spans. A span that finds the queue full is dropped, and a batch
//! that the collector does not accept in time is lost. Both are counted, and logged at a limited rate.

use super::options::{OptionsError, TelemetryOptions};
use crate::telemetry::metrics::spans::SpanFigures;
use crate::telemetry::throttle::Throttle;
use opentelemetry::Context;
use opentelemetry_otlp::{RetryPolicy, SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter as _, SpanProcessor};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::warn;

/// Most spans that wait; further ones are dropped. OpenTelemetry's default.
const MAX_QUEUED: usize = 2_048;
/// Most spans in one export; OpenTelemetry's default.
const MAX_BATCH: usize = 512;
/// How long the first span of an export waits for others.
const GATHERING: Duration = Duration::from_secs(1);
/// Timeout of an export.
const EXPORT: Duration = Duration::from_secs(5);
/// Timeout of all remaining exports during the shutdown.
const LAST_EXPORTS: Duration = Duration::from_secs(1);
/// Least time between two warnings.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);

/// The exporting task.
pub(super) struct Export {
    running: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

/// Queues the spans that have ended.
#[derive(Debug)]
pub(super) struct Queue {
    sender: mpsc::Sender<SpanData>,
    figures: SpanFigures,
    warnings: Throttle,
}

impl Export {
    /// Starts the task, which connects when there is something to export.
    pub(super) fn start(
        options: &TelemetryOptions,
        resource: &Resource,
        figures: SpanFigures,
    ) -> Result<(Export, Queue), OptionsError> {
        let mut exporter = SpanExporter::builder()
            .with_tonic()
            .with_channel(options.channel()?)
            // A batch that failed is not repeated, to make room for newer spans.
            .with_retry_policy(RetryPolicy::disabled())
            .with_timeout(EXPORT)
            .build()
            .map_err(|error| OptionsError::Exporter(error.to_string()))?;
        exporter.set_resource(resource);
        let (sender, spans) = mpsc::channel(MAX_QUEUED);
        let (end, ending) = oneshot::channel();
        let task = tokio::spawn(run(exporter, spans, figures.clone(), ending));
        let queue = Queue { sender, figures, warnings: Throttle::new(BETWEEN_WARNINGS) };
        Ok((Export { running: Mutex::new(Some((end, task))) }, queue))
    }

    /// Exports the queued spans, and ends the task.
    pub(super) async fn end(&self) {
        let Some((end, mut task)) = self.running.lock().take() else { return };
        // An error means that the task has already ended.
        let _ = end.send(());
        if timeout(LAST_EXPORTS, &mut task).await.is_err() {
            task.abort();
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some((_, task)) = self.running.get_mut().take() {
            task.abort();
        }
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.sender.try_send(span).is_ok() {
            return;
        }
        self.figures.dropped.inc();
        if let Some(held_back) = self.warnings.pass() {
            warn!(held_back, "dropped spans: the queue is full because the collector is too slow");
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

async fn run(
    exporter: SpanExporter,
    mut spans: mpsc::Receiver<SpanData>,
    figures: SpanFigures,
    mut ending: oneshot::Receiver<()>,
) {
    let warnings = Throttle::new(BETWEEN_WARNINGS);
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            () = gather(&mut spans, &mut batch) => {}
            _ = &mut ending, if !spans.is_closed() => {
                spans.close();
                continue;
            }
        }
        let count = batch.len() as u64;
        if count == 0 {
            return;
        }
        let exported = timeout(EXPORT, exporter.export(std::mem::take(&mut batch))).await;
        let Err(why) =
            exported.map_or(Err("no response in time".to_owned()), |r| r.map_err(|e| e.to_string()))
        else {
            figures.exported.inc_by(count);
            continue;
        };
        figures.failed.inc_by(count);
        if let Some(held_back) = warnings.pass() {
            warn!(spans = count, held_back, "could not export spans to the collector: {why}");
        }
    }
}

/// Fills a batch, or takes the spans that arrive within a short time of the first. Empty once the queue is closed and empty.
async fn gather(spans: &mut mpsc::Receiver<SpanData>, batch: &mut Vec<SpanData>) {
    if batch.is_empty() && spans.recv_many(batch, MAX_BATCH).await == 0 {
        return;
    }
    let more = async {
        while batch.len() < MAX_BATCH && spans.recv_many(batch, MAX_BATCH - batch.len()).await > 0 {}
    };
    // An error means that this time is over.
    let _ = timeout(GATHERING, more).await;
}
