//! Begins and ends the faults of the plan. Faults of messages take effect in `network`.

use super::World;
use super::event::{Event, WorkerAt};
use crate::plan::{Link, Part, Wrong};

impl World<'_> {
    pub(super) fn plan_faults(&mut self) {
        let traffic_ms = self.plan.traffic_ms;
        for (number, fault) in self.plan.faults.clone().into_iter().enumerate() {
            if fault.at_ms >= traffic_ms {
                continue;
            }
            // All faults end with the traffic.
            let end_ms = fault.at_ms.saturating_add(fault.for_ms).min(traffic_ms);
            self.queue.plan(self.begin_us + fault.at_ms * 1_000, Event::Fault(number, true));
            self.queue.plan(self.begin_us + end_ms * 1_000, Event::Fault(number, false));
            if let Wrong::Roll { region } = fault.what {
                self.plan_roll(region, fault.at_ms, end_ms);
            }
        }
    }

    /// Each Envoy is down for half of its share of the fault's time.
    fn plan_roll(&mut self, region: usize, from_ms: u64, to_ms: u64) {
        let envoys = self.plan.topology.envoys as u64;
        let share_us = (to_ms - from_ms) * 1_000 / envoys.max(1);
        for envoy in 0..envoys {
            let at = self.envoy_at(region, envoy as usize);
            let begins = self.begin_us + from_ms * 1_000 + envoy * share_us;
            if at < self.envoys.len() {
                self.queue.plan(begins, Event::Roll(at, true));
                self.queue.plan(begins + share_us / 2, Event::Roll(at, false));
            }
        }
    }

    pub(super) fn roll(&mut self, at: usize, ends: bool) {
        match ends {
            true => self.end_envoy(at, true),
            false if self.envoys[at].process.is_none() => self.start_envoy(at),
            false => {}
        }
    }

    pub(super) fn fault(&mut self, number: usize, begins: bool) {
        let what = self.plan.faults[number].what;
        match what {
            Wrong::Delay { .. }
            | Wrong::Lose { .. }
            | Wrong::Repeat { .. }
            | Wrong::Reorder { .. }
            | Wrong::Cut { .. } => match begins {
                true => {
                    self.network.begin(number, what);
                    self.plan_keepalives();
                }
                false => {
                    self.network.end(number);
                    self.heal();
                    // Connections for peers' messages that were cut are established again.
                    if let Wrong::Cut { link: Link::Redis { region, .. } | Link::Peers { region } } = what
                        && region < self.redis.len()
                    {
                        self.resubscribe(region);
                    }
                }
            },
            Wrong::Freeze { part } => self.freeze(part, begins),
            Wrong::Crash { part } => self.stop(part, begins, false),
            Wrong::Restart { part } | Wrong::Rebuild { part } => self.stop(part, begins, true),
            Wrong::Skew { part, ms } => self.skew(part, if begins { ms } else { ms.saturating_neg() }),
            Wrong::Wipe { part } if begins => self.wipe_store(part),
            Wrong::Restore { part: Part::Database } => self.restore_database(number, begins),
            Wrong::FailOver { region } => self.set_back(region, true, begins),
            Wrong::SetBack { region } => self.set_back(region, false, begins),
            Wrong::Slow { part, ms } => self.slow_store(part, ms, begins),
            // A wipe takes effect at once, a flood is part of the traffic, and a rolling restart has its own events. Only the
            // database is set back.
            Wrong::Wipe { .. } | Wrong::Restore { .. } | Wrong::Flood { .. } | Wrong::Roll { .. } => {}
        }
    }

    fn freeze(&mut self, part: Part, begins: bool) {
        let change = |frozen: &mut u32| *frozen = if begins { *frozen + 1 } else { frozen.saturating_sub(1) };
        match part {
            Part::Envoy { region, envoy } => {
                let at = self.envoy_at(region, envoy);
                let Some(envoy) = self.envoys.get_mut(at) else { return };
                change(&mut envoy.frozen);
                if let Some(process) = envoy.process.as_ref().filter(|_| begins) {
                    self.check.may_reap(process.node, process.meta.geometry, &process.table, self.now_us);
                }
                self.check.set_frozen(at, self.now_us, begins);
                let workers = self.envoys[at].process.as_ref().map_or(0, |process| process.workers.len());
                if !begins {
                    (0..workers).for_each(|worker| self.thaw(WorkerAt { envoy: at, worker }));
                }
            }
            Part::Worker { region, envoy, worker } => {
                let at = WorkerAt { envoy: self.envoy_at(region, envoy), worker };
                let process = self.envoys.get_mut(at.envoy).and_then(|envoy| envoy.process.as_mut());
                let Some(Some(worker)) = process.and_then(|process| process.workers.get_mut(worker)) else {
                    return;
                };
                change(&mut worker.frozen);
                if let Some(process) = self.envoys[at.envoy].process.as_ref().filter(|_| begins) {
                    self.check.may_reap(process.node, process.meta.geometry, &process.table, self.now_us);
                }
                self.check.set_frozen(at.envoy, self.now_us, begins);
                if !begins {
                    self.thaw(at);
                }
            }
            Part::Aggregator { region, aggregator } => {
                let at = self.aggregator_at(region, aggregator);
                let Some(host) = self.aggregators.get_mut(at) else { return };
                change(&mut host.frozen);
                if !begins {
                    self.thaw_aggregator(at);
                }
            }
            Part::Redis { .. } | Part::Database => self.freeze_store(part, begins),
        }
        if begins {
            self.plan_keepalives();
        }
    }

    fn stop(&mut self, part: Part, begins: bool, in_order: bool) {
        match part {
            Part::Envoy { region, envoy } => {
                let at = self.envoy_at(region, envoy);
                match self.envoys.get(at) {
                    None => {}
                    Some(_) if begins => self.end_envoy(at, in_order),
                    Some(envoy) if envoy.process.is_none() => self.start_envoy(at),
                    Some(_) => {}
                }
            }
            Part::Worker { region, envoy, worker } => {
                let at = WorkerAt { envoy: self.envoy_at(region, envoy), worker };
                let process = self.envoys.get(at.envoy).and_then(|envoy| envoy.process.as_ref());
                let is_running = process.and_then(|process| process.workers.get(worker)).map(Option::is_some);
                match (is_running, begins) {
                    (Some(true), true) => self.end_worker(at, in_order),
                    (Some(false), false) => self.start_worker(at),
                    _ => {}
                }
            }
            Part::Aggregator { region, aggregator } => {
                let at = self.aggregator_at(region, aggregator);
                match self.aggregators.get(at) {
                    None => {}
                    Some(_) if begins => self.end_aggregator(at, in_order),
                    Some(host) if host.process.is_none() => self.start_aggregator(at),
                    // The process is still shutting down.
                    Some(_) if in_order => self.aggregators[at].restarts = true,
                    Some(_) => {}
                }
            }
            Part::Redis { .. } | Part::Database => self.stop_store(part, begins),
        }
    }

    fn skew(&mut self, part: Part, by_ms: i64) {
        let clock = match part {
            Part::Envoy { region, envoy } | Part::Worker { region, envoy, .. } => {
                let at = self.envoy_at(region, envoy);
                self.envoys.get_mut(at).map(|envoy| &mut envoy.clock)
            }
            Part::Aggregator { region, aggregator } => {
                let at = self.aggregator_at(region, aggregator);
                self.aggregators.get_mut(at).map(|host| &mut host.clock)
            }
            Part::Redis { .. } | Part::Database => None,
        };
        if let Some(clock) = clock {
            clock.skew_ms = clock.skew_ms.saturating_add(by_ms);
        }
    }
}

/// Whether a fault may keep peers' messages from arriving.
pub(super) fn loses_messages(what: &Wrong) -> bool {
    match what {
        Wrong::Lose { link, .. } | Wrong::Cut { link } | Wrong::Delay { link, .. } => {
            matches!(link, Link::Redis { .. } | Link::Peers { .. })
        }
        Wrong::Freeze { part } | Wrong::Crash { part } | Wrong::Restart { part } | Wrong::Wipe { part } => {
            matches!(part, Part::Redis { .. } | Part::Aggregator { .. })
        }
        Wrong::Slow { part, .. } => matches!(part, Part::Redis { .. }),
        Wrong::FailOver { .. } | Wrong::SetBack { .. } => true,
        _ => false,
    }
}
