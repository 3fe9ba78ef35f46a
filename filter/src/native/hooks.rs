//! The functions that Envoy calls. Envoy refuses a module that lacks one of them, so those without a use are here too.
//!
//! A place in Envoy's configuration is an [`Entry`], and a request a [`Filter`]; Envoy passes the address that it got for either.

use super::installed::{Installed, Place};
use super::slots::{self, Slot};
use super::{installed, streams, ticker};
use crate::counters::metrics;
use crate::host::abi::{self, Bytes, Object, Pair};
use crate::host::calls::{self, EnvoyConfig, RequestScheduler, Subject};
use crate::perform::{perform, show};
use crate::plugin::{Effect, Plugin};
use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What the hook of a request's headers returns. A paused request with a body is stopped wholly.
const CONTINUE: u32 = 0;
const ANSWERED: u32 = 1;
const PAUSE: u32 = 4;
/// gRPC's UNAVAILABLE.
const UNAVAILABLE: u32 = 14;

/// A place in Envoy's configuration; `None` if Envoy only checks it.
struct Entry(Option<(Arc<Installed>, Arc<Place>)>);

/// A request.
struct Filter {
    root: u32,
    slot: Option<&'static Slot>,
    /// Its number; 0 if nothing is kept of it.
    context: Cell<u32>,
    scheduler: RefCell<Option<Arc<RequestScheduler>>>,
}

/// Runs `work`. After a panic, returns `safe`.
fn guard<R>(safe: R, work: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(safe)
}

#[unsafe(no_mangle)]
pub extern "C" fn envoy_dynamic_module_on_program_init() -> *const c_char {
    abi::VERSION.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    config: Object,
    _name: Bytes,
    text: Bytes,
) -> *const c_void {
    // SAFETY: Envoy passes bytes that are valid until this hook ends.
    let text = unsafe { text.get() };
    let entry = guard(None, || configure(config, text));
    entry.map_or(std::ptr::null(), |entry| Box::into_raw(Box::new(entry)).cast())
}

/// Makes a place for a configuration; `None` rejects it.
fn configure(config: Object, text: &[u8]) -> Option<Entry> {
    let parsed = Plugin::parse(text)?;
    if calls::is_validation_mode() {
        return Some(Entry(None));
    }
    slots::make(calls::concurrency());
    let wanted = metrics::names(&parsed.rules);
    let place = Place::new(EnvoyConfig::new(config), &wanted);
    let same = Installed::of_text(text);
    let is_new = same.is_none();
    let installed = same.unwrap_or_else(|| Installed::add(text, parsed));
    let place = installed.add_place(place);
    if is_new {
        slots::all().iter().for_each(|slot| slot.configure(&installed));
    }
    ticker::start();
    Some(Entry(Some((installed, place))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(entry: *mut c_void) {
    // SAFETY: the address is that of a box which the hook above made, and Envoy passes it for the last time.
    let entry = unsafe { Box::from_raw(entry.cast::<Entry>()) };
    guard((), || {
        let Entry(Some((installed, place))) = *entry else { return };
        let is_last = installed.remove_place(place.number);
        if is_last {
            slots::all().iter().for_each(|slot| slot.end(installed.root));
            installed.remove();
        }
        streams::lose_all(&place);
    });
}

/// The parts of the place at an address.
///
/// # Safety
/// The address is that of an entry which was not destroyed.
unsafe fn parts<'a>(entry: *const c_void) -> Option<(&'a Arc<Installed>, &'a Arc<Place>)> {
    // SAFETY: the caller's.
    let Entry(parts) = unsafe { &*entry.cast::<Entry>() };
    parts.as_ref().map(|(installed, place)| (installed, place))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_scheduled(
    _config: Object,
    entry: *const c_void,
    _event: u64,
) {
    // SAFETY: Envoy passes a live entry.
    let parts = unsafe { parts(entry) };
    guard((), || {
        if let Some((installed, _)) = parts {
            streams::work(installed);
            installed::pass_metrics();
        }
    });
}

/// Headers of Envoy, as pairs.
///
/// # Safety
/// They are valid for `'a`.
unsafe fn pairs<'a>(headers: *const Pair, count: usize) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    let headers = match headers.is_null() {
        true => &[],
        // SAFETY: the caller's.
        false => unsafe { std::slice::from_raw_parts(headers, count) },
    };
    // SAFETY: the caller's.
    headers.iter().map(|pair| unsafe { (pair.name(), pair.value()) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_headers(
    _config: Object,
    entry: *const c_void,
    stream: u64,
    headers: *const Pair,
    count: usize,
    is_end: bool,
) {
    // SAFETY: Envoy passes a live entry, and headers that are valid until this hook ends.
    let (parts, headers) = unsafe { (parts(entry), pairs(headers, count)) };
    guard((), || {
        let Some((_, place)) = parts else { return };
        streams::on_status(place, stream, headers);
        if is_end {
            streams::on_end(place, stream, None);
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_data(
    _config: Object,
    entry: *const c_void,
    stream: u64,
    data: *const Bytes,
    count: usize,
    is_end: bool,
) {
    // SAFETY: Envoy passes a live entry, and bytes that are valid until this hook ends.
    let (parts, data) = unsafe {
        let slices = if data.is_null() { &[] } else { std::slice::from_raw_parts(data, count) };
        (parts(entry), slices.iter().map(|bytes| bytes.get()))
    };
    guard((), || {
        let Some((_, place)) = parts else { return };
        streams::on_data(place, stream, data);
        if is_end {
            streams::on_end(place, stream, None);
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_trailers(
    _config: Object,
    entry: *const c_void,
    stream: u64,
    trailers: *const Pair,
    count: usize,
) {
    // SAFETY: Envoy passes a live entry, and trailers that are valid until this hook ends.
    let (parts, trailers) = unsafe { (parts(entry), pairs(trailers, count)) };
    guard((), || {
        let Some((_, place)) = parts else { return };
        streams::on_status(place, stream, trailers);
        streams::on_end(place, stream, None);
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_complete(
    _config: Object,
    entry: *const c_void,
    stream: u64,
) {
    // SAFETY: Envoy passes a live entry.
    let parts = unsafe { parts(entry) };
    guard((), || {
        if let Some((_, place)) = parts {
            streams::on_removed(place, stream, None);
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_reset(
    _config: Object,
    entry: *const c_void,
    stream: u64,
    _reason: u32,
) {
    // SAFETY: Envoy passes a live entry.
    let parts = unsafe { parts(entry) };
    guard((), || {
        if let Some((_, place)) = parts {
            streams::on_removed(place, stream, Some(UNAVAILABLE));
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_new(
    entry: *const c_void,
    request: Object,
) -> *const c_void {
    // SAFETY: Envoy passes a live entry and a live request.
    let (parts, worker) = unsafe { (parts(entry), abi::worker_index(request)) };
    let filter = Filter {
        root: parts.map_or(0, |(installed, _)| installed.root),
        slot: parts.and_then(|_| slots::of(usize::try_from(worker).unwrap_or_default())),
        context: Cell::new(0),
        scheduler: RefCell::new(None),
    };
    Box::into_raw(Box::new(filter)).cast()
}

/// The request at an address, and its slot.
///
/// # Safety
/// The address is that of a filter which was not destroyed.
unsafe fn request<'a>(filter: *const c_void) -> Option<(&'a Filter, &'static Slot)> {
    // SAFETY: the caller's.
    let filter = unsafe { &*filter.cast::<Filter>() };
    filter.slot.map(|slot| (filter, slot))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
    request_of_envoy: Object,
    filter: *const c_void,
    is_end: bool,
) -> u32 {
    // SAFETY: Envoy passes a live filter.
    let Some((filter, slot)) = (unsafe { request(filter) }) else { return CONTINUE };
    let _subject = Subject::enter(request_of_envoy);
    match slot.guard(Effect::Pass, || decide(filter, slot, is_end)) {
        Effect::Pass => CONTINUE,
        Effect::Pause => PAUSE,
        Effect::PassLabelled(label) => slot.guard(CONTINUE, || {
            show(&label);
            CONTINUE
        }),
        refuse @ Effect::Refuse(_) => slot.guard(CONTINUE, || {
            perform(refuse);
            ANSWERED
        }),
    }
}

fn decide(filter: &Filter, slot: &Slot, ends: bool) -> Effect {
    slot.on_request(filter.root, |inner| {
        let context = inner.number();
        let effect = inner.vm.on_request(context, ends);
        let is_paused = matches!(effect, Effect::Pause);
        if is_paused || inner.vm.is_tracking() {
            filter.context.set(context);
        }
        if is_paused {
            let Some(scheduler) = RequestScheduler::new().map(Arc::new) else {
                inner.vm.on_done(context);
                return Effect::Pass;
            };
            inner.wait(context, scheduler.clone());
            filter.scheduler.replace(Some(scheduler));
        }
        effect
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_scheduled(
    request_of_envoy: Object,
    filter: *const c_void,
    context: u64,
) {
    // SAFETY: Envoy passes a live filter.
    let Some((_, slot)) = (unsafe { request(filter) }) else { return };
    let _subject = Subject::enter(request_of_envoy);
    slot.guard((), || {
        if let Some(effect) = u32::try_from(context).ok().and_then(|context| slot.take_decided(context)) {
            perform(effect);
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_headers(
    request_of_envoy: Object,
    filter: *const c_void,
    _is_end: bool,
) -> u32 {
    // SAFETY: Envoy passes a live filter.
    let Some((filter, slot)) = (unsafe { request(filter) }) else { return CONTINUE };
    let context = filter.context.get();
    if context != 0 {
        let _subject = Subject::enter(request_of_envoy);
        slot.guard((), || {
            for (name, value) in slot.on_request(filter.root, |inner| inner.vm.on_response(context)) {
                value.with_text(|value| calls::add_response_header(&name, value));
            }
        });
    }
    CONTINUE
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_stream_complete(
    request_of_envoy: Object,
    filter: *const c_void,
) {
    // SAFETY: Envoy passes a live filter.
    let Some((filter, slot)) = (unsafe { request(filter) }) else { return };
    let context = filter.context.get();
    if context != 0 {
        let _subject = Subject::enter(request_of_envoy);
        slot.guard((), || slot.on_request(filter.root, |inner| inner.vm.on_log(context)));
        finish(filter, slot);
    }
}

/// Ends what is kept of a request.
fn finish(filter: &Filter, slot: &Slot) {
    let context = filter.context.replace(0);
    if context != 0 {
        slot.guard((), || {
            slot.on_request(filter.root, |inner| {
                inner.remove(context);
                inner.vm.on_done(context);
            });
        });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_destroy(filter: *mut c_void) {
    // SAFETY: the address is that of a box which `http_filter_new` made, and Envoy passes it for the last time.
    let filter = unsafe { Box::from_raw(filter.cast::<Filter>()) };
    if let Some(slot) = filter.slot {
        finish(&filter, slot);
    }
}

macro_rules! without_use {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> u32 {
                CONTINUE
            }
        )*
    };
}

without_use! {
    envoy_dynamic_module_on_http_filter_request_body
    envoy_dynamic_module_on_http_filter_request_trailers
    envoy_dynamic_module_on_http_filter_response_body
    envoy_dynamic_module_on_http_filter_response_trailers
    envoy_dynamic_module_on_http_filter_http_callout_done
    envoy_dynamic_module_on_http_filter_http_stream_headers
    envoy_dynamic_module_on_http_filter_http_stream_data
    envoy_dynamic_module_on_http_filter_http_stream_trailers
    envoy_dynamic_module_on_http_filter_http_stream_complete
    envoy_dynamic_module_on_http_filter_http_stream_reset
    envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark
    envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark
}
