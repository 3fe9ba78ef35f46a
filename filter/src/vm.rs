//! The plugins of a VM and their workers: which plugin an event belongs to, and what follows for the others.
//!
//! A VM usually runs one plugin: its thread's filter. There are several while a reload replaces a listener, or if filters with different
//! configurations have one `vm_id`. They share one worker, unless they name different aggregators. A request that waits is numbered by its
//! root and its context, so that whatever decides it finds its plugin.

use crate::host::calls;
use crate::host::kinds::Here;
use crate::host::roots;
use crate::host::shared::EnvoyShared;
use crate::plugin::{Effect, Plugin, request_of};
use crate::responses::Header;
use crate::worker::Worker;
use weir_core::limiter::Output;
use weir_core::model::time::MonoMs;
use weir_core::rules::Config;

/// Effects on requests, by their contexts.
pub type Effects = Vec<(u32, Effect)>;

/// A VM's plugins, the newest last, and their workers.
#[derive(Default)]
pub struct Vm {
    plugins: Vec<Plugin>,
    workers: Vec<Worker>,
    /// What has been decided of requests that wait. The next event that is no request's own returns it.
    effects: Effects,
}

impl Vm {
    /// Configures the plugin of `root`.
    pub fn configure(&mut self, root: u32, config: Config) {
        let Some(plugin) = Plugin::configure(root, config, &mut self.workers) else { return };
        // A root that is configured again keeps its worker while another plugin has it.
        self.plugins.push(plugin);
        if self.plugins.iter().filter(|plugin| plugin.root == root).count() > 1 {
            self.end(root, Here::root(root), calls::mono_now());
        }
        roots::declare(root);
    }

    /// Handles the timer of `root`.
    pub fn on_tick(&mut self, root: u32) -> Effects {
        let (here, mono) = (Here::root(root), calls::mono_now());
        self.end_deleted(here, mono);
        let Some(at) = self.worker_of(root) else { return self.take_effects() };
        let is_newest = self.newest_of(at) == Some(root);
        if let Some((plugin, worker)) = self.find(root)
            && !is_newest
            && !plugin.has_paused()
        {
            // The newest one's ticks serve all of them.
            plugin.plan_tick(worker, is_newest);
            return self.take_effects();
        }
        let Vm { plugins, workers, .. } = self;
        let Some(worker) = workers.get_mut(at) else { return self.take_effects() };
        if is_newest {
            worker.move_outdated(here, mono);
        }
        worker.tick(mono);
        for plugin in plugins.iter_mut().filter(|plugin| plugin.worker == at) {
            plugin.on_tick(worker, mono);
        }
        // Another aggregator, or another token, is in force now.
        if plugins.last().is_some_and(|newest| newest.worker != at) {
            worker.limiter.rest(&mut EnvoyShared, mono);
        }
        self.drive(at, here, mono);
        self.send(at, here, mono, |plugins, worker| {
            let rule_in = |workspace: &str, namespace: &str| {
                plugins.iter().rev().find_map(|plugin| plugin.rule_in(workspace, namespace))
            };
            worker.send_proposals(rule_in, here, mono);
        });
        if let Some((plugin, worker)) = self.find(root) {
            plugin.plan_tick(worker, is_newest);
            worker.flush(mono, false);
            worker.send_counters(here, mono);
        }
        self.take_effects()
    }

    /// Decides a request by its headers.
    pub fn on_request(&mut self, context: u32, ends: bool) -> Effect {
        let root = if self.plugins.len() > 1 { roots::current() } else { None };
        let found = root.and_then(|root| self.plugins.iter().position(|plugin| plugin.root == root));
        // The newest, unless the root is known.
        let Some(at) = found.or_else(|| self.plugins.len().checked_sub(1)) else { return Effect::Pass };
        let Some(plugin) = self.plugins.get_mut(at) else { return Effect::Pass };
        let Some(worker) = self.workers.get_mut(plugin.worker) else { return Effect::Pass };
        if worker.limiter.is_idle() {
            let mono = calls::mono_now();
            worker.wake(mono);
            plugin.switch_shadows(worker, mono);
        }
        let effect = plugin.on_request(worker, context, ends);
        if matches!(effect, Effect::Pause) || worker.limiter.is_urgent() {
            plugin.hurry_tick(worker);
            let (at, here) = (plugin.worker, Here { root: plugin.root, context });
            self.drive(at, here, calls::mono_now());
        }
        effect
    }

    /// Handles a response; returns the headers to add.
    pub fn on_response(&mut self, context: u32) -> Vec<Header> {
        for plugin in &mut self.plugins {
            let Some(worker) = self.workers.get_mut(plugin.worker) else { continue };
            let headers =
                if plugin.is_tracking(worker) { plugin.on_response(worker, context) } else { Vec::new() };
            if !headers.is_empty() {
                return headers;
            }
        }
        Vec::new()
    }

    /// Handles the access log of a request, whose response Envoy may have kept from the filter.
    pub fn on_log(&mut self, context: u32) {
        for plugin in &mut self.plugins {
            if let Some(worker) = self.workers.get_mut(plugin.worker) {
                plugin.on_log(worker, context);
            }
        }
    }

    /// Handles a message on the stream `token` of `root`.
    pub fn on_message(&mut self, root: u32, token: u32) -> Effects {
        let (here, mono) = (Here::root(root), calls::mono_now());
        let Some(at) = self.workers.iter().position(|worker| worker.has_stream(root, token)) else {
            return Effects::new();
        };
        let Vm { plugins, workers, .. } = self;
        let Some(worker) = workers.get_mut(at) else { return Effects::new() };
        let has_controls = worker.on_message(here, mono);
        for plugin in plugins.iter_mut().filter(|plugin| has_controls && plugin.worker == at) {
            plugin.switch_shadows(worker, mono);
        }
        self.after_frames(at, here, mono)
    }

    /// Whether a request has left state that must be cleaned up.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn is_tracking(&self) -> bool {
        let has_left = |plugin: &Plugin| {
            self.workers.get(plugin.worker).is_some_and(|worker| plugin.is_tracking(worker))
        };
        self.plugins.iter().any(has_left)
    }

    /// Whether a newer root is there for the worker of the stream `token` of `root`, so that Envoy ends that root and its streams.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn is_outdated(&self, root: u32, token: u32) -> bool {
        let found = self.workers.iter().position(|worker| worker.has_stream(root, token));
        found.is_some_and(|at| self.newest_of(at) != Some(root))
    }

    /// Handles that Envoy has removed the stream `token` of `root`, which did not fail.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn on_stream_lost(&mut self, root: u32, token: u32) -> Effects {
        let (here, mono) = (Here::root(root), calls::mono_now());
        let Some(at) = self.workers.iter().position(|worker| worker.has_stream(root, token)) else {
            return Effects::new();
        };
        if let Some(worker) = self.workers.get_mut(at) {
            worker.on_root_ended(root, here, mono);
        }
        self.after_frames(at, here, mono)
    }

    /// Handles the end of the stream `token` of `root`, in the context of the root `here`.
    pub fn on_stream_closed(&mut self, (root, token): (u32, u32), status: u32, here: u32) -> Effects {
        let (here, mono) = (Here::root(here), calls::mono_now());
        let Some(at) = self.workers.iter().position(|worker| worker.has_stream(root, token)) else {
            return Effects::new();
        };
        if let Some(worker) = self.workers.get_mut(at) {
            worker.on_stream_closed(here, status, mono);
        }
        self.after_frames(at, here, mono)
    }

    /// Ends the root or the request `context`.
    pub fn on_done(&mut self, context: u32) -> Effects {
        if self.plugins.iter().any(|plugin| plugin.root == context) {
            self.end(context, Here::root(context), calls::mono_now());
            return self.take_effects();
        }
        for plugin in &mut self.plugins {
            if let Some(worker) = self.workers.get_mut(plugin.worker)
                && plugin.is_tracking(worker)
            {
                plugin.on_request_done(worker, context);
            }
        }
        Effects::new()
    }

    /// Ends the plugins whose roots Envoy has deleted. The newest one's ticks look for all others, and theirs whether the newest one is left.
    fn end_deleted(&mut self, here: Here, mono: MonoMs) {
        if self.plugins.len() < 2 {
            return;
        }
        let newest = self.worker_of(here.root).and_then(|at| self.newest_of(at));
        let is_looked_for =
            |root: &u32| *root != here.root && (newest == Some(here.root) || newest == Some(*root));
        let others = self.plugins.iter().map(|plugin| plugin.root).filter(is_looked_for);
        let deleted: Vec<u32> = others.filter(|root| calls::set_effective_context(*root).is_err()).collect();
        let _ = calls::set_effective_context(here.context);
        for root in deleted {
            self.end(root, here, mono);
        }
    }

    /// Ends the plugin of `root`, and its worker if no other plugin has it.
    fn end(&mut self, root: u32, here: Here, mono: MonoMs) {
        let Some(found) = self.plugins.iter().position(|plugin| plugin.root == root) else { return };
        let Some(at) = self.plugins.get(found).map(|plugin| plugin.worker) else { return };
        let is_last = self.plugins.iter().filter(|plugin| plugin.worker == at).count() == 1;
        if let Some(worker) = self.workers.get_mut(at).filter(|_| is_last) {
            worker.limiter.shutdown(&mut EnvoyShared, mono);
        }
        // What the limiter has for the plugin, its violators too, while the plugin is here.
        self.run(at, here, mono);
        if let Some(worker) = self.workers.get_mut(at).filter(|_| is_last) {
            worker.save_controls(mono);
        }
        let mut plugin = self.plugins.remove(found);
        if let Some(worker) = self.workers.get_mut(at) {
            plugin.finish(worker, mono);
            worker.send_last_counters(here);
            plugin.release(worker);
            worker.on_root_ended(root, here, mono);
            if is_last {
                worker.flush(mono, true);
            }
        }
        if is_last {
            self.workers.remove(at);
            for plugin in self.plugins.iter_mut().filter(|plugin| plugin.worker > at) {
                plugin.worker = plugin.worker.saturating_sub(1);
            }
        }
    }

    /// Does what an event of a worker's stream has led to.
    fn after_frames(&mut self, at: usize, here: Here, mono: MonoMs) -> Effects {
        self.drive(at, here, mono);
        if let Some((plugin, worker)) = self.find(here.root) {
            plugin.hurry_tick(worker);
        }
        self.take_effects()
    }

    /// Does what a worker's limiter and live control have to do now.
    fn drive(&mut self, at: usize, here: Here, mono: MonoMs) {
        self.run(at, here, mono);
        self.send(at, here, mono, |_, worker| worker.send_known_controls(here, mono));
    }

    /// Sends what the limiter has no part in. A frame that finds the stream broken decides the requests that waited, so the limiter has more
    /// to do then.
    fn send(&mut self, at: usize, here: Here, mono: MonoMs, send: impl FnOnce(&[Plugin], &mut Worker)) {
        let Vm { plugins, workers, .. } = self;
        let Some(worker) = workers.get_mut(at) else { return };
        let was_connected = worker.limiter.is_connected();
        send(plugins, worker);
        if was_connected && !worker.limiter.is_connected() {
            self.run(at, here, mono);
        }
    }

    /// Does what a worker's limiter has to do now. The newest root opens the stream.
    fn run(&mut self, at: usize, here: Here, mono: MonoMs) {
        let newest = self.newest_of(at).unwrap_or(here.root);
        let Vm { plugins, workers, effects } = self;
        let Some(worker) = workers.get_mut(at) else { return };
        while let Some(output) = worker.limiter.next(&mut EnvoyShared, mono) {
            match output {
                Output::Close(reason) => worker.cancel(reason, here, mono),
                Output::Open => worker.open(newest, here, mono),
                Output::Send(frame) => worker.send_of_limiter(frame, here, mono),
                Output::Resolve { request, outcome } => {
                    let (root, context) = request_of(request);
                    match plugin_of(plugins, root) {
                        Some(plugin) => effects.extend(plugin.resume(worker, context, outcome, mono)),
                        // It has ended with its plugin.
                        None => {
                            worker.limiter.settle_cost(&mut EnvoyShared, request, |_, _| Some(0), mono);
                        }
                    }
                }
                Output::Shadow { request, rule, outcome } => {
                    if let Some(plugin) = plugin_of(plugins, request_of(request).0) {
                        plugin.count_shadow_outcome(rule, outcome);
                    }
                }
                // The violations of others belong to plugins that have ended.
                Output::Struck(violator) => {
                    if let Some(plugin) = plugin_of(plugins, violator.rule.0) {
                        plugin.ban(worker, &violator, mono);
                    }
                }
            }
        }
    }

    /// The effects on requests that waited and have been decided.
    fn take_effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    fn worker_of(&self, root: u32) -> Option<usize> {
        self.plugins.iter().find(|plugin| plugin.root == root).map(|plugin| plugin.worker)
    }

    /// The root of a worker's newest plugin.
    fn newest_of(&self, at: usize) -> Option<u32> {
        self.plugins.iter().rfind(|plugin| plugin.worker == at).map(|plugin| plugin.root)
    }

    fn find(&mut self, root: u32) -> Option<(&mut Plugin, &mut Worker)> {
        let plugin = self.plugins.iter_mut().find(|plugin| plugin.root == root)?;
        let worker = self.workers.get_mut(plugin.worker)?;
        Some((plugin, worker))
    }
}

fn plugin_of(plugins: &mut [Plugin], root: u32) -> Option<&mut Plugin> {
    plugins.iter_mut().find(|plugin| plugin.root == root)
}
