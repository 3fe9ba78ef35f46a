//! Tests of packets: what writers write in one round trip, and what readers read with their cursors. The same for MariaDB, MySQL and
//! SQLite.

mod contents;
mod feed;
mod locks;
mod losses;
mod markers;
mod plans;
mod servers;
mod writers;

use crate::support::database::packets::*;
use crate::support::database::*;
use contents::*;
use feed::*;
use locks::*;
use losses::*;
use markers::*;
use plans::*;
use servers::*;
use std::time::Duration;
use weir_core::region::exchange::Publication;
use writers::*;

on_servers!(|store| scenarios_of_servers(&store));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let store = Store::sqlite();
    scenarios(&store).await;
    run!(
        &store,
        a_file_that_is_read_only_is_read,
        a_file_that_another_process_locks,
        a_file_that_loses_its_rows_within_a_packet,
        sqlite_reads_what_is_new,
    );
}

async fn scenarios_of_servers(store: &Store) {
    scenarios(store).await;
    run!(
        store,
        a_row_behind_a_lock_is_fed_after_a_late_commit,
        packets_of_one_writer_wait_for_each_other,
        a_packet_that_is_the_victim_of_a_deadlock,
        a_server_that_is_read_only_is_read,
        a_packet_above_the_servers_limit,
        a_packet_takes_one_round_trip,
        a_table_lost_before_a_packet_is_written,
        a_table_lost_before_a_packet_reads,
        a_feed_reads_what_is_new,
    );
}

async fn scenarios(store: &Store) {
    run!(
        store,
        two_writers_read_each_others_rows_once,
        a_packet_that_raises_nothing_changes_no_column,
        the_writer_that_repeats_a_row_moves_its_version,
        a_lower_limit_moves_the_row,
        two_writers_of_one_region,
        a_writer_that_restarts,
        a_packet_that_arrives_after_its_successor,
        pages_never_split_a_version,
        bad_rows_fill_pages_and_are_skipped,
        a_truncated_table,
        a_table_set_back,
        a_loss_is_recorded_until_it_is_read,
        markers_are_no_cells,
        markers_end,
        more_markers_than_writers,
        an_own_marker_that_cannot_be,
        bytes_stay_bytes,
        rows_that_cannot_be_stored_are_left_out,
        a_packet_that_the_database_refuses,
        the_feed_is_of_one_moment,
        opposite_orders_do_not_deadlock,
        a_lagging_replica_returns_lower_counts,
        as_many_cursors_as_writers,
    );
}

fn limited(identifier: &str, count: u64, limit: u64) -> Publication {
    Publication { limit, ..row(identifier, count) }
}

/// Less than a statement waits for a lock.
const SHORT: Duration = Duration::from_millis(700);

/// Two nodes in regions a and b that have read each other's markers.
async fn pair(scene: &Scene) -> (Node, Node) {
    let mut nodes = (Node::new(scene.open("a"), 1), Node::new(scene.open("b"), 2));
    nodes.0.send(&[]).await;
    nodes.1.send(&[]).await;
    assert_eq!(nodes.0.read().await.new_writers, 1);
    nodes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
