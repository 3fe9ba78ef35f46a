//! The laws of merging, for arbitrary reports in any order.

use super::*;
use proptest::prelude::*;

/// The final components after `reports` in the given order.
fn merged(reports: &[(u8, u64, u64)]) -> Vec<(u64, Vec<(NodeId, u64)>)> {
    let mut region = region();
    for (by, sequence, own) in reports {
        region.report(node(*by), &[count("k", *sequence, *own)], NOW);
    }
    let explained = region.explain(b"w", b"n", b"k");
    let cells = explained.iter().flat_map(|explained| &explained.cells);
    cells
        .inspect(|cell| assert_eq!(cell.regional_total(), cell.components.iter().map(|c| c.own).sum::<u64>()))
        .filter(|cell| !cell.components.is_empty())
        .map(|cell| (cell.sequence, cell.components.iter().map(|c| (c.node, c.own)).collect()))
        .collect()
}

fn reports() -> impl Strategy<Value = Vec<(u8, u64, u64)>> {
    prop::collection::vec((1u8..4, SEQUENCE - 2..=SEQUENCE + 2, 0u64..100), 0..40)
}

proptest! {
    #[test]
    fn merging_is_commutative(reports in reports(), seed in any::<u64>()) {
        let mut shuffled = reports.clone();
        let mut state = seed | 1;
        for at in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(at, (state >> 33) as usize % (at + 1));
        }
        prop_assert_eq!(merged(&reports), merged(&shuffled));
    }

    #[test]
    fn merging_is_idempotent(reports in reports()) {
        let twice: Vec<_> = reports.iter().chain(&reports).copied().collect();
        prop_assert_eq!(merged(&reports), merged(&twice));
    }

    #[test]
    fn merging_is_the_pointwise_maximum(reports in reports()) {
        let mut expected = std::collections::BTreeMap::new();
        for (by, sequence, own) in reports.iter().filter(|(_, _, own)| *own > 0) {
            let cell: &mut std::collections::BTreeMap<_, u64> = expected.entry(*sequence).or_default();
            let component = cell.entry(node(*by)).or_default();
            *component = (*component).max(*own);
        }
        let expected: Vec<_> =
            expected.into_iter().map(|(sequence, cell)| (sequence, cell.into_iter().collect())).collect();
        prop_assert_eq!(merged(&reports), expected);
    }

    #[test]
    fn granted_costs_never_exceed_the_limit(queries in prop::collection::vec((1u8..5, 0u64..6), 0..40)) {
        let mut region = region();
        let mut own = [0u64; 5];
        for (by, cost) in queries {
            let spent = own[usize::from(by)];
            if region.query(node(by), &query(spent, cost), NOW).unwrap().granted {
                own[usize::from(by)] += cost;
            }
            prop_assert!(own.iter().sum::<u64>() <= 10);
        }
    }
}
