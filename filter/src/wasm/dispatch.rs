//! Passes callbacks to the VM's plugins, and applies to requests what plugins decide.
//!
//! Envoy passes the root of a request to `on_context_create` alone, a crossing for every request. So requests are only assigned to a root if
//! there are several, by `roots::current`. The default module is not called either when a root ends: the ticks of the others find that
//! out.
//!
//! Resuming or answering a request can call back into the VM, so effects are applied while no plugin is borrowed. A callback that
//! arrives during another one (a stream that closes while it is opened) is queued until the next.

use crate::host::calls;
use crate::perform::{perform, show};
use crate::plugin::{Effect, Plugin};
use crate::vm::{Effects, Vm};
use std::cell::RefCell;

/// What `on_request_headers` returns.
const CONTINUE: u32 = 0;
const PAUSE: u32 = 1;

/// gRPC's DATA_LOSS.
const LOST: u32 = 15;

/// Most queued callbacks; usually there is at most one for each stream.
const MAX_EVENTS: usize = 1_024;

thread_local! {
    static VM: RefCell<Vm> = RefCell::default();
    /// Streams that closed while the VM was borrowed: root, token and status.
    static CLOSED: RefCell<Vec<(u32, u32, u32)>> = const { RefCell::new(Vec::new()) };
}

/// Configures a plugin; false rejects the configuration.
pub fn on_configure(root: u32) -> bool {
    let Some(config) = Plugin::parse(&calls::plugin_configuration()) else { return false };
    with(|vm| vm.configure(root, config)).is_some()
}

/// Handles a root's timer.
pub fn on_tick(here: u32) {
    apply(here, with(|vm| vm.on_tick(here)));
    let closed = CLOSED.with(|closed| closed.try_borrow_mut().map(|mut closed| std::mem::take(&mut *closed)));
    for (root, token, status) in closed.unwrap_or_default() {
        apply(here, with(|vm| vm.on_stream_closed((root, token), status, here)));
    }
}

/// Handles a request's headers, which nothing follows if it `ends` with them; returns whether Envoy continues or pauses the request.
pub fn on_request_headers(context: u32, ends: bool) -> u32 {
    let effect = with(|vm| vm.on_request(context, ends)).unwrap_or(Effect::Pass);
    match effect {
        Effect::Pass => CONTINUE,
        Effect::Pause => PAUSE,
        Effect::PassLabelled(label) => {
            show(&label);
            CONTINUE
        }
        refuse @ Effect::Refuse(_) => {
            perform(refuse);
            PAUSE
        }
    }
}

/// Handles a response's headers.
pub fn on_response_headers(context: u32) {
    for (name, value) in with(|vm| vm.on_response(context)).unwrap_or_default() {
        value.with_text(|value| calls::add_response_header(&name, value));
    }
}

/// Handles a message of the aggregator.
pub fn on_grpc_receive(root: u32, token: u32) {
    match with(|vm| vm.on_message(root, token)) {
        Some(effects) => apply(root, Some(effects)),
        // It arrived during another callback and is lost, so the stream has to be opened again.
        None => on_grpc_close(root, token, LOST),
    }
}

/// Handles the end of a stream.
pub fn on_grpc_close(root: u32, token: u32, status: u32) {
    match with(|vm| vm.on_stream_closed((root, token), status, root)) {
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

/// Handles a request's access log.
pub fn on_log(context: u32) {
    with(|vm| vm.on_log(context));
}

/// Ends a request or a root.
pub fn on_done(context: u32) {
    apply(context, with(|vm| vm.on_done(context)));
}

/// Runs `work` on the VM's plugins. `None` if they are borrowed.
fn with<R>(work: impl FnOnce(&mut Vm) -> R) -> Option<R> {
    VM.with(|vm| vm.try_borrow_mut().ok().map(|mut vm| work(&mut vm)))
}

/// Applies effects to paused requests; requests that have ended are skipped.
fn apply(root: u32, effects: Option<Effects>) {
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
