//! The bans that a process proposes to its region.
//!
//! Only the worker that receives live control proposes bans: those of all workers, and those of VMs that ran before. Each
//! is proposed until the region has it or it has ended.

use crate::control::Keeper;
use crate::model::time::{MonoMs, Now};
use crate::model::wire;
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

/// Most bans that are proposed at a time. Further ones follow when these have been accepted or have ended.
pub const MAX_PROPOSALS: usize = 1_024;
/// Time until a proposal is repeated; it doubles with each repetition.
pub const REPEAT_MS: u64 = 1_000;
/// Longest time between two repetitions.
const REPEAT_MS_MAX: u64 = 60_000;

/// The bans that a worker proposes to the region, by the rules of all its configurations.
#[derive(Debug, Default)]
pub struct Proposals {
    proposals: BTreeMap<Name, Proposal>,
    /// The version of the bans that the proposals were last compared with; see [`Controls::bans_version`](crate::control::Controls::bans_version).
    version: Option<u64>,
    /// When the first proposal is due.
    due: Option<MonoMs>,
}

/// Workspace, namespace and identifier.
type Name = (String, String, Vec<u8>);

#[derive(Debug)]
struct Proposal {
    ban: wire::Ban,
    next: MonoMs,
    pause_ms: u64,
}

impl Proposals {
    /// Repeats all proposals: the aggregator of a new stream may have none of them.
    pub fn propose_anew(&mut self) {
        self.proposals.clear();
        self.version = None;
    }

    /// The proposals that are due, for the stream that receives live control. Each ban is proposed until the region has it or it has
    /// ended. Does nothing while none is due. `rule_in` names the rule that bans in a workspace and namespace.
    pub fn take_frames<'a>(
        &mut self,
        keeper: &Keeper,
        rule_in: impl Fn(&str, &str) -> Option<&'a str>,
        now: Now,
    ) -> Vec<wire::FilterFrame> {
        let version = keeper.controls().bans_version();
        if self.version.replace(version) != Some(version) {
            self.compare(keeper, rule_in, now);
        }
        if self.due.is_none_or(|due| now.mono < due) {
            return Vec::new();
        }
        let mut due = Vec::new();
        self.proposals.retain(|_, proposal| now.unix.0 < proposal.ban.until_ms);
        for proposal in self.proposals.values_mut().filter(|proposal| proposal.next <= now.mono) {
            proposal.next = now.mono.after(proposal.pause_ms);
            proposal.pause_ms = proposal.pause_ms.saturating_mul(2).min(REPEAT_MS_MAX);
            due.push(proposal.ban.clone());
        }
        self.due = self.proposals.values().map(|proposal| proposal.next).min();
        let framed = |bans: &[wire::Ban]| wire::FilterFrame { bans: bans.to_vec(), ..Default::default() };
        due.chunks(wire::MAX_FRAME_CONTROLS).map(framed).collect()
    }

    /// Updates the proposals to the bans that only this process has.
    fn compare<'a>(&mut self, keeper: &Keeper, rule_in: impl Fn(&str, &str) -> Option<&'a str>, now: Now) {
        let mut before = core::mem::take(&mut self.proposals);
        for open in keeper.controls().open_bans(now.unix) {
            let Some(rule) = rule_in(open.workspace, open.namespace) else { continue };
            if self.proposals.len() >= MAX_PROPOSALS {
                break;
            }
            let name = (open.workspace.to_owned(), open.namespace.to_owned(), open.identifier.to_vec());
            let same = before.remove(&name).filter(|same| same.ban.until_ms == open.ban.until.0);
            let proposal = same.unwrap_or_else(|| Proposal {
                ban: wire::Ban {
                    workspace: open.workspace.to_owned(),
                    namespace: open.namespace.to_owned(),
                    identifier: open.identifier.to_vec(),
                    until_ms: open.ban.until.0,
                    level: open.ban.level,
                    rule: rule.to_owned(),
                    since_ms: open.ban.since.0,
                },
                next: now.mono,
                pause_ms: REPEAT_MS,
            });
            self.proposals.insert(name, proposal);
        }
        self.due = self.proposals.values().map(|proposal| proposal.next).min();
    }
}
