//! Restricts a filter's frames to its scope. Received parts about other workspaces are made malformed, so that they are
//! answered like any malformed part. Sent parts about other workspaces are left out.

use super::Scope;
use weir_core::model::wire::{Charge, Controls, ExactRequest, FilterFrame, Push};

impl Scope {
    /// Makes malformed, or removes, all parts outside of the scope. Returns the number of such parts.
    pub fn confine(&self, frame: &mut FilterFrame) -> usize {
        if self.is_everything() {
            return 0;
        }
        let counts =
            frame.report.iter_mut().flat_map(|report| &mut report.counts).map(|count| &mut count.key);
        let queries = frame.queries.iter_mut().map(|query| &mut query.key);
        let keys = counts.chain(queries).filter(|key| !self.has_key(key)).map(Vec::clear).count();
        let revoked = frame.refunds.iter_mut().filter_map(|refund| refund.request.as_mut());
        let charges = frame
            .exact_requests
            .iter_mut()
            .chain(revoked)
            .flat_map(|request: &mut ExactRequest| &mut request.charges);
        let charges =
            charges.filter(|charge| !self.has_charge(charge)).map(|charge| *charge = Charge::default());
        let charges = charges.count();
        let bans = frame.bans.len();
        frame.bans.retain(|ban| self.has_workspace(&ban.workspace));
        keys.saturating_add(charges).saturating_add(bans.saturating_sub(frame.bans.len()))
    }

    /// Removes counts of keys outside of the scope.
    pub fn confine_push(&self, push: &mut Push) {
        push.snapshots.retain(|snapshot| self.has_key(&snapshot.key));
    }

    /// Removes live control of other workspaces.
    pub fn confine_controls(&self, controls: &mut Controls) {
        controls.entries.retain(|control| self.has_workspace(&control.workspace));
    }

    fn has_charge(&self, charge: &Charge) -> bool {
        charge.log.as_ref().is_none_or(|log| self.has_key(&log.key))
            && charge.ledger.as_ref().is_none_or(|ledger| self.has_zone(ledger.zone))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Entry, Listed, NewToken, Presented, Tokens};
    use weir_core::model::key::{Key, KeyParts};
    use weir_core::model::wire::{
        Ban, Charge, Control, Controls, Count, ExactRequest, FilterFrame, LedgerLimit, LogLimit, Push, Query,
        Refund, Report, Snapshot,
    };

    fn key(workspace: &str) -> Vec<u8> {
        let parts = KeyParts {
            workspace: workspace.as_bytes(),
            namespace: b"n",
            identifier: b"i",
            duration_ms: 60_000,
            epoch: 0,
            resolution: 1,
        };
        Key::new(&parts).unwrap().as_bytes().to_vec()
    }

    fn frame(workspace: &str, zone: u32) -> FilterFrame {
        let log = Charge { log: Some(LogLimit { key: key(workspace), most: 1 }), ledger: None, cost: 1 };
        let ledger = Charge { log: None, ledger: Some(LedgerLimit { zone, bucket: b"b".to_vec() }), cost: 1 };
        let request = ExactRequest { id: 1, charges: vec![log, ledger], ..ExactRequest::default() };
        FilterFrame {
            report: Some(Report {
                id: 1,
                counts: vec![Count { key: key(workspace), own: 1, ..Count::default() }],
            }),
            queries: vec![Query { key: key(workspace), cost: 1, ..Query::default() }],
            exact_requests: vec![request.clone()],
            refunds: vec![Refund { request: Some(request), results: Vec::new() }],
            bans: vec![Ban { workspace: workspace.to_owned(), ..Ban::default() }],
            ..FilterFrame::default()
        }
    }

    #[test]
    fn a_frame_holds_nothing_of_other_workspaces_and_zones() {
        let entry = Entry {
            name: "a".to_owned(),
            workspaces: Some(Listed::These(["mine".to_owned()].into())),
            zones: Listed::These([1].into()),
            ..Entry::default()
        };
        let made = NewToken::new(entry).unwrap();
        let tokens = Tokens::parse(made.entry.as_bytes()).unwrap();
        let header = format!("Bearer {}", made.token);
        let presented = Presented { header: Some(header.as_bytes()), ..Presented::default() };
        let scope = tokens.scope(presented).unwrap();

        let mut own = frame("mine", 1);
        assert_eq!((scope.confine(&mut own), own), (0, frame("mine", 1)));
        let mut foreign = frame("theirs", 2);
        assert_eq!(scope.confine(&mut foreign), 7);
        assert!(foreign.report.unwrap().counts[0].key.is_empty() && foreign.queries[0].key.is_empty());
        let void = vec![Charge::default(); 2];
        assert_eq!(foreign.exact_requests[0].charges, void);
        assert_eq!(foreign.refunds[0].request.as_ref().unwrap().charges, void);
        assert_eq!(foreign.bans, []);

        let snapshot = |workspace| Snapshot { key: key(workspace), ..Snapshot::default() };
        let mut push = Push { snapshots: vec![snapshot("theirs"), snapshot("mine")], complete: true };
        scope.confine_push(&mut push);
        assert_eq!(push, Push { snapshots: vec![snapshot("mine")], complete: true });
        let control = |workspace: &str| Control { workspace: workspace.to_owned(), ..Control::default() };
        let mut controls =
            Controls { entries: vec![control("mine"), control("theirs")], ..Controls::default() };
        scope.confine_controls(&mut controls);
        assert_eq!(controls.entries, [control("mine")]);
    }
}
