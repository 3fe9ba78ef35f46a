//! From a span's end to the collector: one bounded queue, one task.
//!
//! A collector that is away, slow or hostile costs spans and nothing else: what finds the queue full is dropped, what it
//! does not take within its time is lost, both are counted and now and then said.
//!
//! Leaves to others: the protocol (`opentelemetry_otlp`).

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

/// Spans that wait; further ones are dropped. The standard's default.
pub const MAX_QUEUED: usize = 2_048;
/// Spans in one export; the standard's default.
const MAX_BATCH: usize = 512;
/// How long the first span of an export waits for others.
const GATHERING: Duration = Duration::from_secs(1);
/// How long an export may take.
const EXPORT: Duration = Duration::from_secs(5);
/// What the last exports get together when the program ends.
const LAST_EXPORTS: Duration = Duration::from_secs(1);
/// Between two warnings.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);

/// The task that exports.
pub(super) struct Export {
    running: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

/// Where spans end.
#[derive(Debug)]
pub(super) struct Queue {
    sender: mpsc::Sender<SpanData>,
    figures: SpanFigures,
    warnings: Throttle,
}

impl Export {
    /// Connects when there is something to export.
    pub(super) fn start(
        options: &TelemetryOptions,
        resource: &Resource,
        figures: SpanFigures,
    ) -> Result<(Export, Queue), OptionsError> {
        let mut exporter = SpanExporter::builder()
            .with_tonic()
            .with_channel(options.channel()?)
            // What could not be exported makes room for what is newer.
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

    /// Exports what waits, and ends.
    pub(super) async fn end(&self) {
        let Some((end, mut task)) = self.running.lock().take() else { return };
        // It ends with the program in any case.
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
            warn!(held_back, "spans are dropped, as the collector does not take them fast enough");
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
        let Err(why) = exported.map_or(Err("it takes too long".to_owned()), |r| r.map_err(|e| e.to_string()))
        else {
            figures.exported.inc_by(count);
            continue;
        };
        figures.failed.inc_by(count);
        if let Some(held_back) = warnings.pass() {
            warn!(spans = count, held_back, "the collector did not take spans: {why}");
        }
    }
}

/// Fills a batch, or takes what comes within a while of the first. Nothing once the queue is closed and empty.
async fn gather(spans: &mut mpsc::Receiver<SpanData>, batch: &mut Vec<SpanData>) {
    if batch.is_empty() && spans.recv_many(batch, MAX_BATCH).await == 0 {
        return;
    }
    let more = async {
        while batch.len() < MAX_BATCH && spans.recv_many(batch, MAX_BATCH - batch.len()).await > 0 {}
    };
    // An error means that the while is over.
    let _ = timeout(GATHERING, more).await;
}
