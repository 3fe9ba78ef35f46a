//! The worker's VM: which plugin an event belongs to, and doing to requests what plugins decide.
//!
//! Resuming or answering a request can call back into the VM, so effects are done when no plugin is borrowed. An
//! event that arrives in the midst of another (a stream that closes while it is opened) waits for the next.

use crate::host::calls;
use crate::host::headers::serialise;
use crate::plugin::{Effect, Label, Plugin};
use std::cell::{Cell, RefCell};

/// What `on_request_headers` returns.
const CONTINUE: u32 = 0;
const PAUSE: u32 = 1;

/// A larger message is none of an aggregator's: four times what it sends at most.
const MAX_MESSAGE_BYTES: usize = 4 * weir_core::model::wire::MAX_FRAME_BYTES;
/// gRPC's RESOURCE_EXHAUSTED.
const RESOURCE_EXHAUSTED: u32 = 8;
/// gRPC's DATA_LOSS.
const LOST: u32 = 15;

/// Events that may wait: one for each stream is usual.
const MAX_EVENTS: usize = 1_024;

thread_local! {
    static PLUGINS: RefCell<Vec<(u32, Plugin)>> = const { RefCell::new(Vec::new()) };
    /// The request created last and its root: Envoy creates a request right before it hands over its headers.
    static LAST: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    /// Streams that closed while a plugin was at work: root, token and status.
    static CLOSED: RefCell<Vec<(u32, u32, u32)>> = const { RefCell::new(Vec::new()) };
}

/// A root (whose `root` is 0) or a request of a root begins.
pub fn on_context_create(context: u32, root: u32) {
    if root != 0 {
        LAST.set((context, root));
    }
}

/// Takes a plugin's configuration; false refuses it.
pub fn on_configure(root: u32) -> bool {
    let Some(plugin) = Plugin::configure(&calls::plugin_configuration()) else { return false };
    PLUGINS.with(|plugins| {
        let Ok(mut plugins) = plugins.try_borrow_mut() else { return false };
        plugins.retain(|(of, _)| *of != root);
        plugins.push((root, plugin));
        true
    })
}

/// The timer of a root.
pub fn on_tick(root: u32) {
    let effects = with(root, Plugin::on_tick);
    apply(root, effects);
    let closed = CLOSED.with(|closed| closed.try_borrow_mut().map(|mut closed| std::mem::take(&mut *closed)));
    for (root, token, status) in closed.unwrap_or_default() {
        apply(root, with(root, |plugin| plugin.on_stream_closed(token, status)));
    }
}

/// A request's headers are there; returns whether it goes on or waits.
pub fn on_request_headers(context: u32) -> u32 {
    let effect = with(root_of(context), |plugin| plugin.on_request(context)).unwrap_or(Effect::Pass);
    match effect {
        Effect::Pass => CONTINUE,
        Effect::Pause => PAUSE,
        Effect::PassLabelled(label) => {
            show(&label);
            CONTINUE
        }
        refuse @ Effect::Refuse(..) => {
            perform(refuse);
            PAUSE
        }
    }
}

/// A response's headers are there.
pub fn on_response_headers(context: u32) {
    let tracking =
        |(_, plugin): &mut (u32, Plugin)| plugin.is_tracking().then(|| plugin.on_response(context));
    let headers = PLUGINS.with(|plugins| {
        let mut plugins = plugins.try_borrow_mut().ok()?;
        plugins.iter_mut().filter_map(tracking).find(|headers| !headers.is_empty())
    });
    for (name, value) in headers.unwrap_or_default() {
        calls::add_response_header(name, &value);
    }
}

/// A message of the aggregator.
pub fn on_grpc_receive(root: u32, token: u32, size: usize) {
    if size > MAX_MESSAGE_BYTES {
        return on_grpc_close(root, token, RESOURCE_EXHAUSTED);
    }
    match with(root, |plugin| plugin.on_message(token)) {
        Some(effects) => apply(root, Some(effects)),
        // Met in the midst of something else: lost, so the stream has to begin anew.
        None => on_grpc_close(root, token, LOST),
    }
}

/// A stream ended.
pub fn on_grpc_close(root: u32, token: u32, status: u32) {
    match with(root, |plugin| plugin.on_stream_closed(token, status)) {
        Some(effects) => apply(root, Some(effects)),
        None => CLOSED.with(|closed| {
            if let Ok(mut closed) = closed.try_borrow_mut()
                && closed.len() < MAX_EVENTS
            {
                closed.push((root, token, status));
            }
        }),
    }
}

/// A request or a root is over.
pub fn on_done(context: u32) {
    let ended = PLUGINS.with(|plugins| {
        let mut plugins = plugins.try_borrow_mut().ok()?;
        if let Some(at) = plugins.iter().position(|(root, _)| *root == context) {
            return Some(plugins.swap_remove(at));
        }
        for (_, plugin) in plugins.iter_mut().filter(|(_, plugin)| plugin.is_tracking()) {
            plugin.on_request_done(context);
        }
        None
    });
    if let Some((root, mut plugin)) = ended {
        apply(root, Some(plugin.on_shutdown()));
    }
}

/// The root of a request.
fn root_of(context: u32) -> u32 {
    let (last, root) = LAST.get();
    if last == context { root } else { 0 }
}

/// Runs `work` on the plugin of `root`, or the only one; `None` if there is none or it is at work already.
fn with<R>(root: u32, work: impl FnOnce(&mut Plugin) -> R) -> Option<R> {
    PLUGINS.with(|plugins| {
        let mut plugins = plugins.try_borrow_mut().ok()?;
        match plugins.as_mut_slice() {
            [(of, plugin)] if *of == root || root == 0 => Some(work(plugin)),
            several => several.iter_mut().find(|(of, _)| *of == root).map(|(_, plugin)| work(plugin)),
        }
    })
}

/// Does to paused requests what was decided; those that are gone are skipped.
fn apply(root: u32, effects: Option<Vec<(u32, Effect)>>) {
    let effects = effects.unwrap_or_default();
    if effects.is_empty() {
        return;
    }
    for (context, effect) in effects {
        if calls::set_effective_context(context).is_ok() {
            perform(effect);
        }
    }
    let _ = calls::set_effective_context(root);
}

/// Does it to the request at hand. A refusal by Envoy means that the request is gone, which harms nobody.
fn perform(effect: Effect) {
    match effect {
        Effect::Pause => {}
        Effect::Pass => {
            let _ = calls::resume_request();
        }
        Effect::PassLabelled(label) => {
            show(&label);
            let _ = calls::resume_request();
        }
        Effect::Refuse(label, answer) => {
            show(&label);
            let headers = serialise(&answer.headers);
            let _ = calls::respond(
                answer.status,
                answer.details,
                &headers,
                answer.body.as_bytes(),
                answer.grpc_status,
            );
        }
    }
}

/// Rule and outcome for access logs, as filter state: a WASM filter cannot set dynamic metadata.
fn show(label: &Label) {
    calls::set_filter_state("weir_rule", &label.rule);
    calls::set_filter_state("weir_outcome", label.outcome);
}
