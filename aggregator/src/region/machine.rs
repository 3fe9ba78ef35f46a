//! Runs the core's state machines: makes their calls, and waits as they state.

use super::hub::Hub;
use std::future::Future;
use std::sync::Arc;
use tokio::task::JoinSet;
use weir_core::replication::{Event, Next};

/// A state machine of the core, with what makes its calls.
pub trait Machine: Send {
    /// A call.
    type Call: PartialEq + Send;

    /// What to do now.
    fn next(&mut self, hub: &Hub) -> Next<Self::Call>;

    /// Makes a call, and passes its result to the machine.
    fn call(&mut self, hub: &Arc<Hub>, call: Self::Call) -> impl Future<Output = ()> + Send;

    /// Does what is to be done before the machine waits, or when it is over.
    fn idle(&mut self, _hub: &Hub, _next: &Next<Self::Call>) {}

    /// An event for which the machine waited was notified.
    fn notified(&mut self, _hub: &Hub, _event: Event) {}
}

impl Hub {
    /// Starts a task that runs a machine until it is over, or until the program ends.
    pub fn start(self: &Arc<Hub>, mut machine: impl Machine + 'static, tasks: &mut JoinSet<()>) {
        let hub = self.clone();
        tasks.spawn(async move { hub.drive(&mut machine).await });
    }

    /// Runs a machine until it is over.
    pub async fn drive<M: Machine>(self: &Arc<Hub>, machine: &mut M) {
        self.drive_until(machine, |_, _| false).await;
    }

    /// Runs a machine until it is over, or has reached a state.
    pub async fn drive_until<M: Machine>(
        self: &Arc<Hub>,
        machine: &mut M,
        is_reached: impl Fn(&M, &Hub) -> bool + Send,
    ) {
        while !is_reached(machine, self) {
            match machine.next(self) {
                Next::Call(call) => machine.call(self, call).await,
                next => {
                    machine.idle(self, &next);
                    if next == Next::Over {
                        return;
                    }
                    if let Some(event) = self.idle(next).await {
                        machine.notified(self, event);
                    }
                }
            }
        }
    }
}
