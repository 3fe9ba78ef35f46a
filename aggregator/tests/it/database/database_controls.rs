//! Tests of live control in the database: targets, authors, the order of changes, and the audit; on SQLite, MariaDB and
//! MySQL.

use crate::support::database::{NOW, Scene, Store, WITHIN, on_servers, run};
use std::time::Duration;
use weir_aggregator::controls::{Action, AuditFilter, ControlFilter, PlaceFilter};
use weir_aggregator::database::{Database, NEWS_ROWS, NewsPage};
use weir_core::control::book::{Book, Edition, first_revision, sent_incarnation};
use weir_core::control::change::{Bound, Change, ChangeOutcome, MAX_AUTOMATIC, StoredControl, Wish};
use weir_core::control::news::UnfinishedNews;
use weir_core::control::{Effect, MAX_CONTROLS, Selector, Slot, Target};
use weir_core::matching::networks::parse_network;
use weir_core::model::time::UnixMs;
use weir_core::model::wire::ControlsKnown;

#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    scenarios(&Store::sqlite()).await;
}

on_servers!(|store| scenarios(&store));

async fn scenarios(store: &Store) {
    run!(
        store,
        changes_are_read_and_audited,
        a_revision_is_higher_than_any_that_was_used_before,
        rules_extend_bans_by_rules_and_nothing_else,
        a_lifted_ban_returns_only_after_new_violations,
        changes_at_once_are_all_made_in_order,
        controls_in_force_are_bounded,
        many_controls_are_read_in_parts_and_on_after_a_failure,
        a_database_that_is_restored_between_two_parts_is_read_anew,
        expired_controls_are_dropped_and_outdated_readers_start_from_scratch,
        a_database_that_was_wiped_or_set_back_begins_another_incarnation,
        a_database_that_was_set_back_and_changed_again_begins_another_incarnation,
        rows_that_were_deleted_beside_their_edition_are_missed,
        cleanups_and_changes_leave_nothing_to_miss,
    );
}

fn target(name: &str) -> Target {
    Target {
        workspace: "w".into(),
        scope: "n".into(),
        selector: Selector::Identifier(name.into()),
        window_ms: None,
    }
}

fn change(name: &str, wish: Wish) -> Change {
    Change { target: target(name), wish, reason: "why".into(), author: "ann".into(), automatic: None }
}

fn set(name: &str, effect: Effect) -> Change {
    change(name, Wish::Set(effect, None))
}

fn by_rule(name: &str, until: u64) -> Change {
    by_rule_since(name, until, NOW.0)
}

fn by_rule_since(name: &str, until: u64, since: u64) -> Change {
    let wish = Wish::Set(Effect::Ban, Some(UnixMs(until)));
    Change { automatic: Some(UnixMs(since)), author: "rule r".into(), ..change(name, wish) }
}

fn of(workspace: &str, change: Change) -> Change {
    Change { target: target_of(workspace, change.target), ..change }
}

fn target_of(workspace: &str, target: Target) -> Target {
    Target { workspace: workspace.into(), ..target }
}

async fn one(database: &Database, change: Change, now: UnixMs) -> ChangeOutcome {
    let changed = database.change_controls(&[change], &Book::new(), now, WITHIN).await.unwrap();
    let [changed] = changed.try_into().unwrap();
    changed
}

fn done(changed: ChangeOutcome) -> (StoredControl, Option<StoredControl>) {
    match changed {
        ChangeOutcome::Done(now, was) => (*now, was.map(|was| *was)),
        other => panic!("{other:?}"),
    }
}

/// Reads the controls that a book does not have; returns whether there were any.
async fn read(database: &Database, book: &mut Book, now: UnixMs) -> bool {
    read_comparing(database, book, false, now).await
}

/// The same, until the book has what the table has.
async fn read_comparing(database: &Database, book: &mut Book, compares: bool, now: UnixMs) -> bool {
    let (mut so_far, mut is_new) = (UnfinishedNews::default(), false);
    loop {
        match database.control_news(book, &mut so_far, compares, now, WITHIN).await.unwrap() {
            NewsPage::Nothing => return is_new,
            NewsPage::Part => {}
            NewsPage::All(news) => {
                assert_eq!(news.bad, 0);
                is_new |= book.take(news, now);
                if !book.has_lost() {
                    return is_new;
                }
            }
        }
    }
}

fn in_force(book: &Book) -> Vec<String> {
    let frames = book.frames_since(None, NOW);
    assert!(!frames.is_empty(), "a book that was read");
    let entries = frames.into_iter().flat_map(|frame| frame.entries);
    entries.map(|entry| entry.identifier + &entry.network).collect()
}

fn within(place: PlaceFilter) -> ControlFilter {
    ControlFilter { place, ..Default::default() }
}

async fn listed(database: &Database, filter: ControlFilter) -> Vec<StoredControl> {
    database.controls(&ControlFilter { limit: 100, ..filter }, NOW, WITHIN).await.unwrap()
}

/// A database that was set back while no aggregator ran shows nobody which revisions it has lost.
async fn a_revision_is_higher_than_any_that_was_used_before(store: &Store) {
    let scene = store.fresh().await;
    let a = scene.open("a");
    let mut last = 0;
    for after_ms in [0, 1, 3_600_000, 3_600_001, 3_600_500] {
        let now = UnixMs(NOW.0 + after_ms);
        let (reset, _) = done(one(&a, set("alice|*", Effect::Reset), now).await);
        let revision = reset.control.revision;
        assert!(revision > last && revision >= first_revision(now), "{revision} after {last}");
        last = revision;
    }
}

async fn changes_are_read_and_audited(store: &Store) {
    let scene = store.fresh().await;
    let (a, b) = (scene.open("a"), scene.open("b"));
    let mut book = Book::new();
    assert!(read(&b, &mut book, NOW).await && in_force(&book).is_empty());
    assert!(!read(&b, &mut book, NOW).await, "there must be nothing new");

    let (first, was) = done(one(&a, set("alice|*", Effect::Limit(5)), NOW).await);
    assert_eq!((was, first.created_at), (None, NOW.0));
    let same = one(&a, set("alice|*", Effect::Limit(5)), UnixMs(NOW.0 + 9)).await;
    assert_eq!(same, ChangeOutcome::Same(Box::new(first.clone())), "a repeated change must change nothing");
    let ban = Change { reason: "spam".into(), ..set("alice|*", Effect::Ban) };
    let (second, was) = done(one(&a, ban, UnixMs(NOW.0 + 10)).await);
    assert_eq!(was.as_ref(), Some(&first));
    assert_eq!((second.control.revision, second.created_at), (first.control.revision + 1, NOW.0));
    let network = Target { selector: Selector::Network(parse_network("10.0.0.0/8").unwrap()), ..target("") };
    done(one(&a, Change { target: network, ..set("", Effect::Exempt) }, NOW).await);
    let (reset, _) = done(one(&a, set("alice|*", Effect::Reset), NOW).await);
    let (again, _) = done(one(&a, set("alice|*", Effect::Reset), UnixMs(NOW.0 + 11)).await);
    assert!(reset.control.revision < again.control.revision, "each reset must be a new one");
    assert!(read(&b, &mut book, NOW).await);
    assert_eq!(in_force(&book), ["alice|*", "10.0.0.0/8", "alice|*"]);

    let alice = PlaceFilter { identifier: "alice|*".into(), ..Default::default() };
    let banned = ControlFilter { place: alice.clone(), slot: Some(Slot::Override), ..Default::default() };
    assert_eq!(listed(&b, banned).await, std::slice::from_ref(&second));
    assert_eq!(listed(&b, within(PlaceFilter { workspace: "W".into(), ..Default::default() })).await, []);
    assert_eq!(
        listed(&b, within(PlaceFilter { network: "10.0.0.0/8".into(), ..Default::default() })).await.len(),
        1
    );
    let after = ControlFilter { after: second.control.revision, ..Default::default() };
    assert_eq!(listed(&b, after).await.len(), 2);

    let missing = one(&b, change("unset", Wish::Delete(Slot::Override)), NOW).await;
    assert_eq!(missing, ChangeOutcome::Missing);
    let (deleted, _) =
        done(one(&b, change("alice|*", Wish::Delete(Slot::Override)), UnixMs(NOW.0 + 20)).await);
    assert!(deleted.is_deleted && deleted.control.effect == Effect::Ban);
    let lost = one(&b, change("alice|*", Wish::Delete(Slot::Override)), UnixMs(NOW.0 + 20)).await;
    assert_eq!(
        lost,
        ChangeOutcome::Same(Box::new(deleted)),
        "a deletion repeated after a lost answer must change nothing"
    );
    assert!(read(&b, &mut book, NOW).await);
    assert_eq!(in_force(&book), ["10.0.0.0/8", "alice|*"]);

    let filter = AuditFilter { place: alice, limit: 3, ..Default::default() };
    let audit = a.control_audit(&filter, WITHIN).await.unwrap();
    let actions: Vec<(Action, Slot, &str)> =
        audit.iter().map(|entry| (entry.action, entry.slot, entry.region.as_str())).collect();
    let expected = [
        (Action::Deleted, Slot::Override, "b"),
        (Action::Set, Slot::Reset, "a"),
        (Action::Set, Slot::Reset, "a"),
    ];
    assert_eq!(actions, expected);
    let was: serde_json::Value = serde_json::from_str(&audit[0].was).unwrap();
    assert_eq!((&was["ban"], &was["reason"]), (&true.into(), &"spam".into()));
    assert!(audit[0].is_now.is_empty() && audit[0].created_at == NOW.0 + 20 && audit[0].author == "ann");
    let older = AuditFilter { before: Some(audit[2].id), ..filter };
    assert_eq!(a.control_audit(&older, WITHIN).await.unwrap().len(), 2);
}

async fn rules_extend_bans_by_rules_and_nothing_else(store: &Store) {
    let scene = store.fresh().await;
    let database = scene.open("a");
    let (until, later) = (NOW.0 + 60_000, NOW.0 + 90_000);
    done(one(&database, by_rule("a", until), NOW).await);
    assert!(
        matches!(one(&database, by_rule("a", until - 1), NOW).await, ChangeOutcome::Kept(_)),
        "the longer ban must stay"
    );
    let (extended, _) = done(one(&database, by_rule("a", later), NOW).await);
    assert_eq!(extended.control.expires, Some(UnixMs(later)));
    done(one(&database, set("a", Effect::Exempt), NOW).await);
    let kept = one(&database, by_rule("a", later + 1), NOW).await;
    assert!(matches!(kept, ChangeOutcome::Kept(stands) if stands.control.effect == Effect::Exempt));
    done(one(&database, by_rule("b", until), NOW).await);
    let (anew, was) = done(one(&database, by_rule("b", later), UnixMs(until)).await);
    assert_eq!((was, anew.created_at), (None, until), "the first has expired");
}

async fn a_lifted_ban_returns_only_after_new_violations(store: &Store) {
    let scene = store.fresh().await;
    let database = scene.open("a");
    let (until, at) = (NOW.0 + 60_000, |ms| UnixMs(NOW.0 + ms));
    done(one(&database, by_rule("a", until), NOW).await);
    done(one(&database, change("a", Wish::Delete(Slot::Override)), at(10)).await);
    // Another Envoy, whose stream was down meanwhile.
    let late = one(&database, by_rule_since("a", until + 9, NOW.0 + 9), at(20)).await;
    assert!(matches!(late, ChangeOutcome::Kept(found) if found.is_deleted));
    let (again, was) = done(one(&database, by_rule_since("a", until, NOW.0 + 11), at(20)).await);
    assert_eq!((again.control.effect, was), (Effect::Ban, None));

    // The same with an expired control that a person set.
    done(one(&database, change("a", Wish::Set(Effect::Exempt, Some(at(40)))), at(30)).await);
    let late = one(&database, by_rule_since("a", until, NOW.0 + 29), at(50)).await;
    assert!(matches!(late, ChangeOutcome::Kept(found) if found.control.effect == Effect::Exempt));
    done(one(&database, by_rule_since("a", until, NOW.0 + 41), at(50)).await);
}

async fn changes_at_once_are_all_made_in_order(store: &Store) {
    const EACH: usize = 15;
    let scene = store.fresh().await;
    let write = |region: &'static str| {
        let database = scene.open(region);
        async move {
            let mut last = 0;
            for i in 0..EACH {
                let own = done(one(&database, set(&format!("{region}{i}"), Effect::Limit(1)), NOW).await).0;
                assert!(own.control.revision > last);
                last = own.control.revision;
                let services = Change {
                    author: region.into(),
                    reason: format!("{region}{i}"),
                    ..set("both", Effect::Limit(1))
                };
                done(one(&database, services, NOW).await);
            }
        }
    };
    let reading = async {
        let (database, mut book) = (scene.open("c"), Book::new());
        let mut last_read: Option<Edition> = None;
        while in_force_count(&book) <= 2 * EACH {
            if read(&database, &mut book, NOW).await {
                // A control with a lower revision than the last reading must never appear later.
                let edition = book.edition().unwrap();
                assert!(last_read.is_none_or(|last_read| last_read.revision < edition.revision
                    && last_read.incarnation == edition.incarnation));
                last_read = Some(edition);
            }
        }
        book
    };
    let all = async { tokio::join!(write("a"), write("b"), reading).2 };
    let mut book = tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    read(&scene.open("c"), &mut book, NOW).await;
    assert_eq!(in_force_count(&book), 2 * EACH + 1);
    let changes = scene.number("SELECT COUNT(*) FROM weir_control_audit").await;
    assert_eq!(changes, 4 * EACH as i64, "no change may be lost");
    let span = scene.number("SELECT MAX(revision) - MIN(revision) FROM weir_control_audit").await;
    assert_eq!(span, 4 * EACH as i64 - 1, "each change must have a separate revision");
}

fn in_force_count(book: &Book) -> usize {
    book.in_force(NOW)
}

async fn controls_in_force_are_bounded(store: &Store) {
    let scene = store.fresh().await;
    let database = scene.open("a");
    assert!(read(&database, &mut Book::new(), NOW).await);
    let (ban, ban_by_operator) = (by_rule("x", NOW.0 + 9), set("x", Effect::Ban));
    // Three times what is left for the others: most of so much.
    let part = |most: usize| (3 * most).div_ceil(4);
    // Two workspaces, w and v, take all that they may have, and leave room to u.
    let w_rules = part(MAX_AUTOMATIC);
    let v_rules = part(MAX_AUTOMATIC - w_rules);
    fill(&scene, "w", 1, w_rules, true).await;
    assert_eq!(one(&database, ban.clone(), NOW).await, ChangeOutcome::Full(Bound::Rules));
    fill(&scene, "v", 1 + w_rules, v_rules, true).await;
    assert_eq!(one(&database, of("v", ban.clone()), NOW).await, ChangeOutcome::Full(Bound::Rules));
    done(one(&database, of("u", ban), NOW).await);
    done(one(&database, of("u", change("x", Wish::Delete(Slot::Override))), NOW).await);
    let (rules, w_all) = (w_rules + v_rules, part(MAX_CONTROLS - v_rules));
    fill(&scene, "w", 1 + rules, w_all - w_rules, false).await;
    assert_eq!(one(&database, ban_by_operator.clone(), NOW).await, ChangeOutcome::Full(Bound::Controls));
    // A deletion makes room for another change of the same group.
    let together = [
        change("f4", Wish::Delete(Slot::Override)),
        set("z", Effect::Exempt),
        set("f5", Effect::Exempt),
        ban_by_operator.clone(),
    ];
    let changed = database.change_controls(&together, &Book::new(), NOW, WITHIN).await.unwrap();
    use ChangeOutcome::{Done, Full};
    assert!(matches!(changed[..], [Done(..), Done(..), Done(..), Full(Bound::Controls)]), "{changed:?}");
    let v_all = part(MAX_CONTROLS - w_all);
    let next = 1 + rules + w_all - w_rules;
    fill(&scene, "v", next, v_all - v_rules, false).await;
    assert_eq!(
        one(&database, of("v", ban_by_operator.clone()), NOW).await,
        ChangeOutcome::Full(Bound::Controls)
    );
    done(one(&database, of("u", ban_by_operator.clone()), NOW).await);
    // So many as no workspaces can have by themselves.
    fill(&scene, "u", next + v_all - v_rules, MAX_CONTROLS - w_all - v_all - 1, false).await;
    assert_eq!(one(&database, of("t", ban_by_operator), NOW).await, ChangeOutcome::Full(Bound::Controls));
    done(one(&database, set("f1", Effect::Exempt), NOW).await);
    let mut book = Book::new();
    assert!(read(&database, &mut book, NOW).await);
    assert_eq!(book.in_force(NOW), MAX_CONTROLS);
    // Up to twice as many controls are stored before expired ones are dropped.
    fill_over(&scene, MAX_CONTROLS + 1, MAX_CONTROLS).await;
    done(one(&database, set("f3", Effect::Exempt), NOW).await);
    let kept = scene.number("SELECT COUNT(*) FROM weir_controls").await;
    assert!(kept < 2 * MAX_CONTROLS as i64, "{kept}");
    assert!(read(&database, &mut book, NOW).await);
    assert_eq!(book.in_force(NOW), MAX_CONTROLS);
}

async fn many_controls_are_read_in_parts_and_on_after_a_failure(store: &Store) {
    let scene = store.fresh().await;
    let database = scene.open("a");
    let (mut book, mut so_far) = (Book::new(), UnfinishedNews::default());
    fill(&scene, "w", 1, 2 * NEWS_ROWS + 500, false).await;
    let read = async |book: &Book, so_far: &mut UnfinishedNews| {
        database.control_news(book, so_far, false, NOW, WITHIN).await
    };
    let is_part = |page| page == Ok(NewsPage::Part);
    assert!(is_part(read(&book, &mut so_far).await));
    scene.run("ALTER TABLE weir_controls RENAME TO away").await;
    assert!(read(&book, &mut so_far).await.is_err());
    scene.run("ALTER TABLE away RENAME TO weir_controls").await;
    // One that was read and one that was not are changed meanwhile, and one is deleted.
    for name in ["f7", "f2400"] {
        done(one(&database, of("w", set(name, Effect::Limit(5))), NOW).await);
    }
    done(one(&database, of("w", change("f8", Wish::Delete(Slot::Override))), NOW).await);
    assert!(is_part(read(&book, &mut so_far).await));
    let Ok(NewsPage::All(news)) = read(&book, &mut so_far).await else { panic!("the last part") };
    assert!(book.take(news, NOW));
    assert_eq!(book.in_force(NOW), 2 * NEWS_ROWS + 499);
    let changed = book.entries().filter(|entry| entry.control.effect == Effect::Limit(5));
    assert_eq!(changed.count(), 2);
    assert_eq!(read(&book, &mut so_far).await, Ok(NewsPage::Nothing));
}

async fn a_database_that_is_restored_between_two_parts_is_read_anew(store: &Store) {
    let scene = store.fresh().await;
    let database = scene.open("a");
    fill(&scene, "w", 1, 2 * NEWS_ROWS + 500, false).await;
    done(one(&database, of("w", set("f2400", Effect::Limit(5))), NOW).await);
    for table in ["weir_controls", "weir_control_edition"] {
        scene.run(&format!("CREATE TABLE backup_{table} AS SELECT * FROM {table}")).await;
    }
    let restore = async || {
        for table in ["weir_controls", "weir_control_edition"] {
            scene.run(&format!("DELETE FROM {table}")).await;
            scene.run(&format!("INSERT INTO {table} SELECT * FROM backup_{table}")).await;
        }
    };
    let part = async |so_far: &mut UnfinishedNews| {
        assert_eq!(database.control_news(&Book::new(), so_far, false, NOW, WITHIN).await, Ok(NewsPage::Part));
    };
    // What is changed is in none of the parts that are read before the restore, and then in one of them again.
    for (parts, changed) in [(1, "f7"), (2, "f1500")] {
        restore().await;
        let mut so_far = UnfinishedNews::default();
        for number in 1..=parts {
            if number == parts {
                done(one(&database, of("w", set(changed, Effect::Ban)), NOW).await);
                done(one(&database, of("w", set("f2400", Effect::Ban)), NOW).await);
            }
            part(&mut so_far).await;
        }
        restore().await;
        if parts == 2 {
            // The edition is behind that of the last part, and not behind that of the first.
            done(one(&database, of("w", set("f2401", Effect::Ban)), NOW).await);
        }
        let mut book = Book::new();
        let news = loop {
            match database.control_news(&book, &mut so_far, false, NOW, WITHIN).await.unwrap() {
                NewsPage::Nothing => panic!("there are controls"),
                NewsPage::Part => {}
                NewsPage::All(news) => break news,
            }
        };
        assert!(book.take(news, NOW));
        let is_held =
            |name: &str| book.entries().any(|entry| entry.control.target == target_of("w", target(name)));
        assert_eq!((book.in_force(NOW), is_held(changed)), (2 * NEWS_ROWS + 500, true), "{changed}");
    }
}

/// Inserts this many controls in force, with consecutive revisions from the first on.
async fn fill(scene: &Scene, workspace: &str, first: usize, many: usize, automatic: bool) {
    fill_with(scene, first, many, |i| {
        format!("('{workspace}','n','f{i}','',0,1,3,0,0,'r','m',{},0,{i},1,1)", u8::from(automatic))
    })
    .await;
}

/// The same, with some expired controls.
async fn fill_over(scene: &Scene, first: usize, many: usize) {
    fill_with(scene, first, many, |i| format!("('w','n','o{i}','',0,1,3,0,5,'r','m',0,0,{i},1,1)")).await;
}

async fn fill_with(scene: &Scene, first: usize, many: usize, row: impl Fn(usize) -> String) {
    let rows: Vec<String> = (first..first + many).map(row).collect();
    let quoted = regex::Regex::new("'([^']*)'").unwrap();
    for rows in rows.chunks(2_000) {
        let mut rows = rows.join(",");
        if !scene.is_mysql() {
            // Texts are bytes in SQLite.
            rows = quoted.replace_all(&rows, "CAST('$1' AS BLOB)").into_owned();
        }
        scene
            .run(&format!(
                "INSERT INTO weir_controls (workspace, scope, identifier, network, window_ms, slot, kind, amount, expires_at,
                 reason, author, automatic, deleted, revision, created_at, updated_at) VALUES {rows}"
            ))
            .await;
    }
}

async fn expired_controls_are_dropped_and_outdated_readers_start_from_scratch(store: &Store) {
    let scene = store.fresh().await;
    let database = scene.open("a");
    let mut behind = Book::new();
    done(one(&database, set("deleted", Effect::Ban), NOW).await);
    done(one(&database, change("expired", Wish::Set(Effect::Ban, Some(UnixMs(NOW.0 + 5)))), NOW).await);
    assert!(read(&database, &mut behind, NOW).await);
    let last_read = behind.edition().unwrap();
    done(one(&database, set("stays", Effect::Ban), NOW).await);
    done(one(&database, change("deleted", Wish::Delete(Slot::Override)), NOW).await);
    let day = Duration::from_secs(24 * 3_600);
    let later = |days: u64| UnixMs(NOW.0 + days * 24 * 3_600_000 + 10);
    let tidied = database.cleanup_controls(30 * day, 400 * day, 1, later(29)).await.unwrap();
    assert_eq!((tidied.controls, tidied.audited), (0, 0));
    let tidied = database.cleanup_controls(30 * day, 400 * day, 1, later(30)).await.unwrap();
    assert_eq!((tidied.controls, tidied.audited), (2, 0), "in two batches");
    assert!(read(&database, &mut behind, later(30)).await);
    let edition = behind.edition().unwrap();
    assert!(edition.floor > last_read.revision, "{edition:?}");
    assert_eq!(behind.entries().count(), 1);
    let old = ControlsKnown {
        incarnation: sent_incarnation(last_read.incarnation),
        revision: last_read.revision,
        proof: 0,
        stamp: last_read.stamp,
    };
    assert!(behind.frames_since(Some(old), later(30))[0].from_scratch);
    let tidied = database.cleanup_controls(30 * day, 400 * day, 3, later(400)).await.unwrap();
    assert_eq!((tidied.controls, tidied.audited), (0, 4));
}

async fn a_database_that_was_wiped_or_set_back_begins_another_incarnation(store: &Store) {
    let scene = store.fresh().await;
    let (a, b) = (scene.open("a"), scene.open("b"));
    let (mut book, mut other) = (Book::new(), Book::new());
    done(one(&a, set("before", Effect::Ban), NOW).await);
    scene.run("CREATE TABLE backup AS SELECT * FROM weir_control_edition").await;
    for i in 0..5 {
        done(one(&a, set(&format!("after{i}"), Effect::Ban), NOW).await);
    }
    assert!(read(&a, &mut book, NOW).await && read(&b, &mut other, NOW).await);
    let incarnation = book.edition().unwrap();

    // Set back: the last five changes are missing, and their revisions would be used again.
    scene.run("DELETE FROM weir_controls WHERE SUBSTR(CAST(identifier AS CHAR), 1, 5) = 'after'").await;
    scene.run("DELETE FROM weir_control_edition").await;
    scene.run("INSERT INTO weir_control_edition SELECT * FROM backup").await;
    assert!(read(&a, &mut book, NOW).await);
    let renewed = book.edition().unwrap();
    assert!(
        renewed.incarnation != incarnation.incarnation && renewed.revision > incarnation.revision,
        "{incarnation:?} {renewed:?}"
    );
    assert_eq!(in_force(&book), ["before"]);
    assert!(read(&b, &mut other, NOW).await);
    assert_eq!((other.edition(), in_force(&other)), (Some(renewed), vec!["before".to_owned()]));

    // Set back again, and changed before any aggregator has read it.
    scene.run("DELETE FROM weir_control_edition").await;
    scene.run("INSERT INTO weir_control_edition SELECT * FROM backup").await;
    scene.run(&format!("UPDATE weir_control_edition SET incarnation = {}", renewed.incarnation)).await;
    let changes = [set("new", Effect::Ban)];
    let changed = a.change_controls(&changes, &book, NOW, WITHIN).await.unwrap();
    assert!(matches!(&changed[..], [ChangeOutcome::Done(now, _)] if now.control.revision > renewed.revision));
    assert!(read(&b, &mut other, NOW).await);
    assert_eq!(in_force(&other), ["before", "new"]);
    assert_ne!(other.edition().unwrap().incarnation, renewed.incarnation);

    // Wiped.
    let before = other.edition().unwrap();
    scene.run("DELETE FROM weir_controls").await;
    scene.run("DELETE FROM weir_control_edition").await;
    assert!(read(&b, &mut other, NOW).await);
    assert!(in_force(&other).is_empty() && other.edition().unwrap().incarnation != before.incarnation);
}

/// Copies both tables, as a dump does.
async fn dump(scene: &Scene) {
    for table in ["weir_controls", "weir_control_edition"] {
        scene.run(&format!("CREATE TABLE dump_of_{table} AS SELECT * FROM {table}")).await;
    }
}

async fn restore(scene: &Scene) {
    for table in ["weir_controls", "weir_control_edition"] {
        scene.run(&format!("DELETE FROM {table}")).await;
        scene.run(&format!("INSERT INTO {table} SELECT * FROM dump_of_{table}")).await;
    }
}

/// An aggregator that had not read what was lost makes as many changes again, and another one that had read it finds out.
async fn a_database_that_was_set_back_and_changed_again_begins_another_incarnation(store: &Store) {
    for is_replaced in [false, true] {
        let scene = store.fresh().await;
        let (behind, ahead) = (scene.open("a"), scene.open("b"));
        let (mut old, mut book) = (Book::new(), Book::new());
        done(one(&behind, set("before", Effect::Ban), NOW).await);
        assert!(read(&behind, &mut old, NOW).await);
        dump(&scene).await;
        for name in ["lost", "last"] {
            done(one(&ahead, set(name, Effect::Ban), NOW).await);
        }
        assert!(read(&ahead, &mut book, NOW).await);
        assert_eq!(in_force(&book), ["before", "lost", "last"]);
        restore(&scene).await;
        // With the same revisions, or with higher ones, the last of them for the same client.
        let (names, later) = if is_replaced { (["new", "last"], 9_000) } else { (["new", "other"], 0) };
        for name in names {
            let changes = [set(name, Effect::Ban)];
            let now = UnixMs(NOW.0 + later);
            let changed = behind.change_controls(&changes, &old, now, WITHIN).await.unwrap();
            assert!(matches!(changed[..], [ChangeOutcome::Done(..)]), "{changed:?}");
        }
        let known = book.edition().unwrap();
        assert!(read(&ahead, &mut book, NOW).await);
        assert_eq!(in_force(&book), ["before", "new", names[1]]);
        let renewed = book.edition().unwrap();
        assert!(renewed.incarnation != known.incarnation && renewed.revision > known.revision);
        assert!(read(&behind, &mut old, NOW).await);
        assert_eq!((old.edition(), in_force(&old)), (Some(renewed), in_force(&book)));
        assert!(!read_comparing(&ahead, &mut book, true, NOW).await, "it is renewed once");
    }
}

async fn rows_that_were_deleted_beside_their_edition_are_missed(store: &Store) {
    let scene = store.fresh().await;
    let database = scene.open("a");
    let mut book = Book::new();
    done(one(&database, set("a", Effect::Ban), NOW).await);
    done(one(&database, change("b", Wish::Set(Effect::Ban, Some(UnixMs(NOW.0 + 9_000)))), NOW).await);
    assert!(read(&database, &mut book, NOW).await);
    let of_b = "DELETE FROM weir_controls WHERE SUBSTR(CAST(identifier AS CHAR), 1, 1) = 'b'";
    for (statement, left) in [(of_b, &["a"] as &[&str]), ("DELETE FROM weir_controls", &[])] {
        let incarnation = book.edition().unwrap().incarnation;
        scene.run(statement).await;
        assert!(!read(&database, &mut book, NOW).await, "without a comparison nothing is new");
        assert!(read_comparing(&database, &mut book, true, NOW).await);
        assert_eq!(in_force(&book), left);
        assert_ne!(book.edition().unwrap().incarnation, incarnation);
        assert!(!read_comparing(&database, &mut book, true, NOW).await, "it is renewed once");
    }
    // An aggregator that starts finds it too, and so the filters that have what is lost are sent the rest.
    done(one(&database, set("a", Effect::Ban), NOW).await);
    assert!(read(&database, &mut book, NOW).await);
    scene.run("DELETE FROM weir_controls").await;
    let mut newcomer = Book::new();
    assert!(read(&database, &mut newcomer, NOW).await);
    assert_ne!(newcomer.edition().unwrap().incarnation, book.edition().unwrap().incarnation);
}

async fn cleanups_and_changes_leave_nothing_to_miss(store: &Store) {
    let scene = store.fresh().await;
    let database = scene.open("a");
    let mut book = Book::new();
    let ends = |name: &str, after: u64| change(name, Wish::Set(Effect::Ban, Some(UnixMs(NOW.0 + after))));
    assert!(read(&database, &mut book, NOW).await);
    let incarnation = book.edition().unwrap().incarnation;
    let steps = [
        vec![set("a", Effect::Ban), ends("b", 5), ends("c", 90_000), set("d", Effect::Exempt)],
        vec![set("a", Effect::Exempt), set("a", Effect::Ban), change("d", Wish::Delete(Slot::Override))],
        vec![ends("b", 20_000), set("e", Effect::Ban)],
        vec![change("a", Wish::Delete(Slot::Override)), ends("c", 95_000)],
    ];
    for (number, changes) in (1..).zip(steps) {
        let now = UnixMs(NOW.0 + number * 10_000);
        let changed = database.change_controls(&changes, &book, now, WITHIN).await.unwrap();
        assert!(changed.iter().all(|changed| matches!(changed, ChangeOutcome::Done(..))), "{changed:?}");
        read_comparing(&database, &mut book, true, now).await;
        database.cleanup_controls(Duration::from_secs(1), Duration::MAX, 2, now).await.unwrap();
        read_comparing(&database, &mut book, true, now).await;
        let edition = book.edition().unwrap();
        assert_eq!(edition.incarnation, incarnation, "{number}");
    }
    assert!(book.edition().unwrap().floor > 0, "something was dropped");
}
