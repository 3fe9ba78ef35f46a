//! Finds the plugin that a callback belongs to, and applies to requests what plugins decide.
//!
//! A VM usually runs one plugin: its worker's filter. There are several while a reload replaces a listener, or if filters with
//! different configurations have one `vm_id`. Envoy passes the root of a request to `on_context_create` alone, a crossing for every request. So
//! requests are only assigned to a root if there are several, by [`roots::current`]. The default module is not called
//! either when a root ends: the ticks of the others find that out.
//!
//! Resuming or answering a request can call back into the VM, so effects are applied while no plugin is borrowed. A callback that
//! arrives during another one (a stream that closes while it is opened) is queued until the next.

use crate::host::calls;
use crate::host::headers::serialise;
use crate::host::roots;
use crate::plugin::{Effect, Label, Plugin};
use std::cell::RefCell;

/// What `on_request_headers` returns.
const CONTINUE: u32 = 0;
const PAUSE: u32 = 1;

/// Largest message that is read: four times the largest frame of an aggregator.
const MAX_MESSAGE_BYTES: usize = 4 * weir_core::model::wire::MAX_FRAME_BYTES;
/// gRPC's RESOURCE_EXHAUSTED.
const RESOURCE_EXHAUSTED: u32 = 8;
/// gRPC's DATA_LOSS.
const LOST: u32 = 15;

/// Most queued callbacks; usually there is at most one for each stream.
const MAX_EVENTS: usize = 1_024;

thread_local! {
    static PLUGINS: RefCell<Vec<(u32, Plugin)>> = const { RefCell::new(Vec::new()) };
    /// Streams that closed while a plugin was borrowed: root, token and status.
    static CLOSED: RefCell<Vec<(u32, u32, u32)>> = const { RefCell::new(Vec::new()) };
}

/// Configures a plugin; false rejects the configuration.
pub fn on_configure(root: u32) -> bool {
    let Some(plugin) = Plugin::configure(&calls::plugin_configuration()) else { return false };
    PLUGINS.with(|plugins| {
        let Ok(mut plugins) = plugins.try_borrow_mut() else { return false };
        plugins.retain(|(of, _)| *of != root);
        plugins.push((root, plugin));
        roots::declare(root);
        true
    })
}

/// Handles a root's timer.
pub fn on_tick(root: u32) {
    end_plugins(root);
    let effects = with(root, Plugin::on_tick);
    apply(root, effects);
    let closed = CLOSED.with(|closed| closed.try_borrow_mut().map(|mut closed| std::mem::take(&mut *closed)));
    for (root, token, status) in closed.unwrap_or_default() {
        apply(root, with(root, |plugin| plugin.on_stream_closed(token, status)));
    }
}

/// Handles a request's headers; returns whether Envoy continues or pauses the request.
pub fn on_request_headers(context: u32) -> u32 {
    let effect = with_current(|plugin| plugin.on_request(context)).unwrap_or(Effect::Pass);
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

/// Handles a response's headers.
pub fn on_response_headers(context: u32) {
    let tracking =
        |(_, plugin): &mut (u32, Plugin)| plugin.is_tracking().then(|| plugin.on_response(context));
    let headers = PLUGINS.with(|plugins| {
        let mut plugins = plugins.try_borrow_mut().ok()?;
        plugins.iter_mut().filter_map(tracking).find(|headers| !headers.is_empty())
    });
    for (name, value) in headers.unwrap_or_default() {
        value.with_text(|value| calls::add_response_header(name, value));
    }
}

/// Handles a message of the aggregator.
pub fn on_grpc_receive(root: u32, token: u32, size: usize) {
    if size > MAX_MESSAGE_BYTES {
        return on_grpc_close(root, token, RESOURCE_EXHAUSTED);
    }
    match with(root, |plugin| plugin.on_message(token)) {
        Some(effects) => apply(root, Some(effects)),
        // It arrived during another callback and is lost, so the stream has to be opened again.
        None => on_grpc_close(root, token, LOST),
    }
}

/// Handles the end of a stream.
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

/// Ends a request or a root.
pub fn on_done(context: u32) {
    let ended = PLUGINS.with(|plugins| {
        let mut plugins = plugins.try_borrow_mut().ok()?;
        if let Some(at) = plugins.iter().position(|(root, _)| *root == context) {
            return Some(plugins.remove(at));
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

/// Ends the plugins whose roots Envoy has deleted. `root` is the one that is called.
fn end_plugins(root: u32) {
    let ended: Vec<(u32, Plugin)> = PLUGINS.with(|plugins| match plugins.try_borrow_mut() {
        Ok(mut plugins) if plugins.len() > 1 => plugins
            .extract_if(.., |(of, _)| *of != root && calls::set_effective_context(*of).is_err())
            .collect(),
        _ => Vec::new(),
    });
    let _ = calls::set_effective_context(root);
    for (_, mut plugin) in ended {
        // Its requests ended before it, so there is nothing to apply the effects to.
        plugin.on_shutdown();
    }
}

/// Runs `work` on the plugin of `root`. `None` if there is none or it is borrowed.
fn with<R>(root: u32, work: impl FnOnce(&mut Plugin) -> R) -> Option<R> {
    PLUGINS.with(|plugins| {
        let mut plugins = plugins.try_borrow_mut().ok()?;
        plugins.iter_mut().find(|(of, _)| *of == root).map(|(_, plugin)| work(plugin))
    })
}

/// Runs `work` on the plugin of the current request. `None` if there is none or it is borrowed.
fn with_current<R>(work: impl FnOnce(&mut Plugin) -> R) -> Option<R> {
    PLUGINS.with(|plugins| {
        let mut plugins = plugins.try_borrow_mut().ok()?;
        let root = if plugins.len() > 1 { roots::current() } else { None };
        let at = root.and_then(|root| plugins.iter().position(|(of, _)| *of == root));
        // The newest, unless the root is known.
        let at = at.or_else(|| plugins.len().checked_sub(1))?;
        plugins.get_mut(at).map(|(_, plugin)| work(plugin))
    })
}

/// Applies effects to paused requests; requests that have ended are skipped.
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

/// Applies an effect to the current request. If Envoy refuses, the request has ended and nothing is to be done.
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
        Effect::Refuse(label, response) => {
            show(&label);
            let headers = serialise(&response.headers);
            let _ = calls::respond(
                response.status,
                response.details,
                &headers,
                response.body.as_bytes(),
                response.grpc_status,
            );
        }
    }
}

/// Writes rule and outcome for access logs to the filter state, as a WASM filter cannot set dynamic metadata.
fn show(label: &Label) {
    calls::set_filter_state("weir_rule", &label.rule);
    calls::set_filter_state("weir_outcome", label.outcome);
}
