//! The streams of all workers, on Envoy's main thread: what workers want is done here, and what arrives goes to them.
//!
//! No lock is held over a call to Envoy, which may call a stream's hooks at once.

use super::frames::Frames;
use super::installed::{Installed, Place, Work, lock};
use super::slots;
use crate::host::calls;
use crate::host::stream::{Call, Job};
use std::sync::{Arc, Mutex};

/// gRPC's statuses UNKNOWN, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE and UNAUTHENTICATED.
const UNKNOWN: u32 = 2;
const PERMISSION_DENIED: u32 = 7;
const RESOURCE_EXHAUSTED: u32 = 8;
const UNIMPLEMENTED: u32 = 12;
const UNAVAILABLE: u32 = 14;
const UNAUTHENTICATED: u32 = 16;

static STREAMS: Mutex<Streams> =
    Mutex::new(Streams { open: Vec::new(), is_starting: false, ended: Vec::new() });

struct Streams {
    open: Vec<Open>,
    /// A stream is being started, whose number is not known.
    is_starting: bool,
    /// Streams that ended before their number was known.
    ended: Vec<StreamId>,
}

/// The place and Envoy's number of a stream.
type StreamId = (u32, u64);

struct Open {
    id: StreamId,
    place: Arc<Place>,
    root: u32,
    slot: usize,
    token: u32,
    frames: Frames,
    /// The gRPC status that was received.
    status: Option<u32>,
}

/// Does what workers have left.
pub fn work(installed: &Installed) {
    for (slot, work) in installed.take_work() {
        match work {
            Work::Job(Job::Open(token, call)) => open(installed, slot, token, &call),
            Work::Job(Job::Send(token, message)) => {
                let found = find(|open| (open.slot, open.token) == (slot, token));
                if let Some((id, place)) = found
                    && !place.envoy.send(id.1, message.bytes())
                {
                    end(id, UNAVAILABLE);
                }
            }
            Work::Job(Job::Close(token)) => close(|open| (open.slot, open.token) == (slot, token)),
            Work::CloseAll => close(|open| (open.slot, open.root) == (slot, installed.root)),
            Work::Reset(place, stream) if installed.has_place(place.number) => place.envoy.reset(stream),
            // It has ended with its place.
            Work::Reset(..) => {}
        }
    }
}

/// Notes a status that was received with headers or trailers.
pub fn on_status<'a>(place: &Place, stream: u64, headers: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
    let mut status = None;
    for (name, value) in headers {
        let number = || std::str::from_utf8(value).ok()?.parse::<u32>().ok();
        match name {
            b":status" if value != b"200" => status = status.or(Some(of_http(number().unwrap_or(0)))),
            b"grpc-status" => status = number().or(Some(UNKNOWN)),
            _ => {}
        }
    }
    if let Some(open) = lock(&STREAMS).open.iter_mut().find(|open| open.id == (place.number, stream)) {
        open.status = status.or(open.status);
    }
}

/// Handles bytes on a stream. Whole messages go to their worker.
pub fn on_data<'a>(place: &Place, stream: u64, data: impl Iterator<Item = &'a [u8]>) {
    let id = (place.number, stream);
    {
        let mut streams = lock(&STREAMS);
        let Some(open) = streams.open.iter_mut().find(|open| open.id == id) else { return };
        data.for_each(|bytes| open.frames.push(bytes));
    }
    loop {
        let (root, token, slot, next) = {
            let mut streams = lock(&STREAMS);
            let Some(open) = streams.open.iter_mut().find(|open| open.id == id) else { return };
            (open.root, open.token, open.slot, open.frames.next())
        };
        match next {
            Ok(None) => return,
            Ok(Some(message)) => {
                if let Some(slot) = slots::of(slot) {
                    calls::with_message(message, || slot.run(root, |vm| vm.on_message(root, token)));
                }
            }
            Err(_) => return on_end(place, stream, Some(RESOURCE_EXHAUSTED)),
        }
    }
}

/// Handles that the aggregator ended a stream, with the status that it sent or this one. Envoy's side of it is removed afterwards.
pub fn on_end(place: &Place, stream: u64, status: Option<u32>) {
    let id = (place.number, stream);
    let open =
        lock(&STREAMS).open.iter().find(|open| open.id == id).map(|open| {
            (open.root, open.slot, open.place.clone(), status.or(open.status).unwrap_or(UNKNOWN))
        });
    if let Some((root, slot, place, status)) = open {
        end(id, status);
        if let Some(installed) = Installed::of_root(root) {
            installed.leave([(slot, Work::Reset(place, stream))]);
        }
    }
}

/// Handles that Envoy has removed a stream, with the status that was received or this one.
pub fn on_removed(place: &Place, stream: u64, status: Option<u32>) {
    let id = (place.number, stream);
    {
        let mut streams = lock(&STREAMS);
        if streams.is_starting && !streams.open.iter().any(|open| open.id == id) {
            streams.ended.push(id);
            return;
        }
    }
    let known = lock(&STREAMS).open.iter().find(|open| open.id == id).and_then(|open| open.status);
    end(id, status.or(known).unwrap_or(UNKNOWN));
}

/// Removes the streams of a place that ends.
pub fn lose_all(place: &Place) {
    let of_place: Vec<StreamId> =
        lock(&STREAMS).open.iter().map(|open| open.id).filter(|id| id.0 == place.number).collect();
    of_place.into_iter().for_each(lose);
}

fn open(installed: &Installed, slot: usize, token: u32, call: &Call) {
    let root = installed.root;
    let refused = || {
        if let Some(slot) = slots::of(slot) {
            slot.run(root, |vm| vm.on_stream_closed((root, token), UNAVAILABLE, root));
        }
    };
    let Some(place) = installed.first_place() else { return refused() };
    {
        let mut streams = lock(&STREAMS);
        (streams.is_starting, streams.ended) = (true, Vec::new());
    }
    let started = place.envoy.start_stream(&call.cluster, &call.headers());
    let has_ended = {
        let mut streams = lock(&STREAMS);
        streams.is_starting = false;
        let ended = std::mem::take(&mut streams.ended);
        let id = started.ok().map(|stream| (place.number, stream));
        match id.filter(|id| !ended.contains(id)) {
            Some(id) => {
                let frames = Frames::default();
                streams.open.push(Open { id, place, root, slot, token, frames, status: None });
                false
            }
            None => true,
        }
    };
    if has_ended {
        refused();
    }
}

/// Tells a worker that its stream has ended. Envoy does not state why, so a stream of a replaced root counts as ended with that root: if it
/// has failed, so does the next one.
fn end(id: StreamId, status: u32) {
    if let Some(Open { root, slot, token, .. }) = take(|open| open.id == id)
        && let Some(slot) = slots::of(slot)
    {
        slot.run(root, |vm| match vm.is_outdated(root, token) {
            true => vm.on_stream_lost(root, token),
            false => vm.on_stream_closed((root, token), status, root),
        });
    }
}

/// Tells a worker that its stream has ended with its configuration.
fn lose(id: StreamId) {
    if let Some(Open { root, slot, token, .. }) = take(|open| open.id == id)
        && let Some(slot) = slots::of(slot)
    {
        slot.run(root, |vm| vm.on_stream_lost(root, token));
    }
}

/// Closes streams that their worker does not want any more.
fn close(which: impl Fn(&Open) -> bool) {
    while let Some(Open { id, place, .. }) = take(&which) {
        place.envoy.reset(id.1);
    }
}

fn find(which: impl Fn(&Open) -> bool) -> Option<(StreamId, Arc<Place>)> {
    lock(&STREAMS).open.iter().find(|open| which(open)).map(|open| (open.id, open.place.clone()))
}

fn take(which: impl Fn(&Open) -> bool) -> Option<Open> {
    let mut streams = lock(&STREAMS);
    let at = streams.open.iter().position(which)?;
    Some(streams.open.swap_remove(at))
}

/// The gRPC status of a response that is none of gRPC, as gRPC maps it.
fn of_http(status: u32) -> u32 {
    match status {
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 => UNIMPLEMENTED,
        429 | 502..=504 => UNAVAILABLE,
        _ => UNKNOWN,
    }
}
