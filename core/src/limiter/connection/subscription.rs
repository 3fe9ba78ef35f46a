//! Whether this worker's stream is the subscriber's: the one of the process that receives the region's pushes.

/// The subscription of one worker's stream.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    /// What the stream was last opened or renewed with; `None` before its first frame.
    sent: Option<bool>,
    /// The registry was updated since the stream was opened. An earlier subscription may have ended: if this worker claimed it while
    /// another one has it, and released it then, the process would have no subscriber.
    registered: bool,
    /// A complete snapshot was received on the stream.
    complete: bool,
}

impl Subscription {
    /// Whether the stream receives pushes.
    pub(super) fn is_active(&self) -> bool {
        self.sent == Some(true)
    }

    /// Whether a complete snapshot was received.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// A stream is being opened.
    pub(super) fn opening(&mut self) {
        self.sent = None;
    }

    /// The aggregator has accepted the stream.
    pub(super) fn on_welcome(&mut self) {
        (self.sent, self.registered, self.complete) = (Some(false), false, false);
    }

    /// The stream has ended.
    pub(super) fn closed(&mut self) {
        *self = Subscription::default();
    }

    /// The worker has updated the registry; `connected`: with an open stream.
    pub(super) fn registered(&mut self, connected: bool) {
        self.registered = connected;
    }

    /// A push was received.
    pub(super) fn on_push(&mut self, complete: bool) {
        self.complete |= complete;
    }

    /// What the stream has to be renewed with, if that has changed. `wanted`: this worker is to be the subscriber.
    pub(super) fn renew(&mut self, wanted: bool) -> Option<bool> {
        let subscriber = wanted && self.registered;
        if self.sent == Some(subscriber) {
            return None;
        }
        // A new subscription begins with a new snapshot, as pushes may have been missed since the last one.
        *self = Subscription { sent: Some(subscriber), complete: false, ..*self };
        Some(subscriber)
    }
}
