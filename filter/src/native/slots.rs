//! The plugins of each worker of Envoy, which its worker, the main thread and the module's thread run in turn.
//!
//! While a slot is locked, Envoy is called only by what cannot call back: reads, the log, and commits of schedulers. What is to be done to a
//! request that waited is left for its worker.

use super::installed::{self, Installed, Work, lock};
use super::wake;
use crate::counters::PANICS;
use crate::host::calls::{self, RequestScheduler};
use crate::host::kinds::MetricType;
use crate::host::{metrics, roots, stream};
use crate::plugin::Effect;
use crate::vm::{Effects, Vm};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock};
use weir_core::model::time::MonoMs;

static SLOTS: OnceLock<Box<[Slot]>> = OnceLock::new();

/// One for each worker. It has lines of the processor's cache to itself.
#[repr(align(128))]
pub struct Slot {
    /// The worker's number.
    pub number: usize,
    inner: Mutex<Inner>,
}

/// What a slot's lock guards.
#[derive(Default)]
pub struct Inner {
    /// The plugins.
    pub vm: Vm,
    last: u32,
    /// Requests that wait, by their numbers.
    waiting: BTreeMap<u32, Arc<RequestScheduler>>,
    /// What was decided of them, until their worker does it.
    decided: BTreeMap<u32, Effect>,
    timers: Vec<Timer>,
}

/// The timer of a root.
struct Timer {
    root: u32,
    period_ms: u32,
    due: MonoMs,
}

/// Makes the slots, at the first configuration.
pub fn make(workers: usize) {
    SLOTS.get_or_init(|| (0..workers).map(|number| Slot { number, inner: Mutex::default() }).collect());
}

/// All slots.
pub fn all() -> &'static [Slot] {
    SLOTS.get().map_or(&[], |slots| slots)
}

/// The slot of a worker.
pub fn of(worker: usize) -> Option<&'static Slot> {
    all().get(worker).or_else(|| all().first())
}

impl Slot {
    /// Runs `work` on the plugins for an event of `root`, and leaves what follows to those that do it.
    pub fn run(&self, root: u32, work: impl FnOnce(&mut Vm) -> Effects) {
        self.guard((), || self.run_unguarded(root, work));
    }

    fn run_unguarded(&self, root: u32, work: impl FnOnce(&mut Vm) -> Effects) {
        let mut inner = lock(&self.inner);
        roots::enter(root);
        let effects = work(&mut inner.vm);
        self.follow(&mut inner, root, effects);
    }

    /// Runs `work` on the slot for an event of a request of `root`.
    pub fn on_request<R>(&self, root: u32, work: impl FnOnce(&mut Inner) -> R) -> R {
        let mut inner = lock(&self.inner);
        roots::enter(root);
        let done = work(&mut inner);
        self.follow(&mut inner, root, Effects::new());
        done
    }

    /// Runs `work`. After a panic, begins the plugins anew, and returns `safe`.
    pub fn guard<R>(&self, safe: R, work: impl FnOnce() -> R) -> R {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            if catch_unwind(AssertUnwindSafe(|| self.begin_anew())).is_err() {
                count_panic();
            }
            safe
        })
    }

    /// Does the ticks that are due. Returns when the next one is.
    pub fn tick(&self, now: MonoMs) -> Option<MonoMs> {
        let is_due = |timer: &&mut Timer| timer.due.0 <= now.0;
        let due: Vec<u32> = {
            let mut inner = lock(&self.inner);
            let again = |timer: &mut Timer| {
                timer.due = MonoMs(now.0.saturating_add(u64::from(timer.period_ms)));
                timer.root
            };
            inner.timers.iter_mut().filter(is_due).map(again).collect()
        };
        for root in due {
            self.run(root, |vm| vm.on_tick(root));
        }
        lock(&self.inner).timers.iter().map(|timer| timer.due).min_by_key(|due| due.0)
    }

    /// Adds the plugin of a configuration.
    pub fn configure(&self, installed: &Installed) {
        self.run(installed.root, |vm| configured(vm, installed));
    }

    /// Ends the plugin of a configuration.
    pub fn end(&self, root: u32) {
        self.run(root, |vm| vm.on_done(root));
        lock(&self.inner).timers.retain(|timer| timer.root != root);
    }

    /// What was decided of a request that waited.
    pub fn take_decided(&self, context: u32) -> Option<Effect> {
        lock(&self.inner).decided.remove(&context)
    }

    /// Leaves jobs, ticks and effects to those that do them.
    fn follow(&self, inner: &mut Inner, root: u32, effects: Effects) {
        if let Some(period_ms) = calls::take_tick_period() {
            inner.set_timer(root, period_ms);
        }
        if stream::has_jobs() {
            installed::leave_jobs(self.number, stream::take_jobs());
        }
        for (context, effect) in effects {
            inner.decide(context, effect);
        }
    }

    /// Makes all plugins anew after a panic. Requests that wait continue.
    fn begin_anew(&self) {
        drop((calls::take_tick_period(), stream::take_jobs()));
        count_panic();
        let old = {
            let mut inner = lock(&self.inner);
            let waiting = std::mem::take(&mut inner.waiting);
            for (context, scheduler) in waiting {
                inner.decided.insert(context, Effect::Pass);
                scheduler.commit(u64::from(context));
            }
            inner.timers.clear();
            std::mem::take(&mut inner.vm)
        };
        // What is broken in it may panic again.
        drop(catch_unwind(AssertUnwindSafe(|| drop(old))));
        for installed in installed::all() {
            installed.leave([(self.number, Work::CloseAll)]);
            // Not guarded: what panics here once does so again.
            self.run_unguarded(installed.root, |vm| configured(vm, &installed));
        }
    }
}

fn configured(vm: &mut Vm, installed: &Installed) -> Effects {
    vm.configure(installed.root, installed.config.clone());
    Effects::new()
}

fn count_panic() {
    if let Some(id) = metrics::define_metric(MetricType::Counter, PANICS) {
        metrics::increment_metric(id, 1);
    }
}

impl Inner {
    /// A number for a request, which no other request that waits has.
    pub fn number(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1) & (installed::FIRST_ROOT - 1);
            if self.last != 0 && !self.waiting.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Keeps a request that waits.
    pub fn wait(&mut self, context: u32, scheduler: Arc<RequestScheduler>) {
        self.waiting.insert(context, scheduler);
    }

    /// Removes a request that has ended.
    pub fn remove(&mut self, context: u32) {
        self.waiting.remove(&context);
        self.decided.remove(&context);
    }

    fn decide(&mut self, context: u32, effect: Effect) {
        if let Some(scheduler) = self.waiting.remove(&context) {
            self.decided.insert(context, effect);
            scheduler.commit(u64::from(context));
        }
    }

    fn set_timer(&mut self, root: u32, period_ms: u32) {
        let due = MonoMs(calls::mono_now().0.saturating_add(u64::from(period_ms)));
        match self.timers.iter_mut().find(|timer| timer.root == root) {
            Some(timer) => (timer.period_ms, timer.due) = (period_ms, due),
            None => self.timers.push(Timer { root, period_ms, due }),
        }
        wake::at(due);
    }
}
