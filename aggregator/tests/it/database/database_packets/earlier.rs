//! Aggregators of the version before packets, on the same table.

use super::{hex, limited, pair};
use crate::support::database::packets::*;
use crate::support::database::*;
use sqlx::mysql::MySqlRow;
use sqlx::{Connection, Row, SqliteConnection};
use weir_core::region::exchange::Publication;

/// The upsert and the import of the version before packets, as it sent them.
const OLD_BEGIN: &str = "
INSERT INTO ratelimit_window_counts
    (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at)
VALUES ";

const OLD_END_MYSQL: &str = "
ON DUPLICATE KEY UPDATE
    updated_at = IF(VALUES(count) > count, VALUES(updated_at), updated_at),
    count      = GREATEST(count, VALUES(count))";
const OLD_END_SQLITE: &str = "
ON CONFLICT (workspace_id, namespace, identifier, duration_ms, sequence, region) DO UPDATE
SET count = excluded.count, updated_at = excluded.updated_at
WHERE excluded.count > count";

const OLD_IMPORT_MYSQL: &str = "
SELECT workspace_id, namespace, identifier, duration_ms, sequence,
       CAST(SUM(IF(count > 9007199254740992, 0, count)) AS UNSIGNED) AS imported,
       CAST(SUM(count > 9007199254740992) AS UNSIGNED) AS implausible
FROM ratelimit_window_counts FORCE INDEX (expires_at_idx)
WHERE expires_at > ? AND region <> ?
GROUP BY workspace_id, namespace, identifier, duration_ms, sequence
ORDER BY NULL
LIMIT ?";

const OLD_IMPORT_SQLITE: &str = "
SELECT workspace_id, namespace, identifier, duration_ms, sequence,
       SUM(IIF(count > 9007199254740992, 0, count)) AS imported,
       SUM(count > 9007199254740992) AS implausible
FROM ratelimit_window_counts INDEXED BY expires_at_idx
WHERE expires_at > ? AND region <> ?
GROUP BY workspace_id, namespace, identifier, duration_ms, sequence
LIMIT ?";

pub async fn old_publish(scene: &Scene, region: &str, rows: &[Publication]) {
    let value = |Publication { key, sequence, count, expires, .. }: &Publication| {
        let (identifier, region) = (hex(key.parts().identifier), hex(region.as_bytes()));
        format!("(x'77',x'6e',x'{identifier}',{HOUR_MS},{sequence},x'{region}',{count},{},1)", expires.0)
    };
    let values: Vec<_> = rows.iter().map(value).collect();
    let end = if scene.is_mysql() { OLD_END_MYSQL } else { OLD_END_SQLITE };
    scene.run(&[OLD_BEGIN, &values.join(","), end].concat()).await;
}

/// Identifier and sum of each cell, as the version before imports them: it skips rows of a window of 0 ms.
async fn old_import(scene: &Scene, region: &str) -> Vec<(String, u64)> {
    /// Identifier, duration, sum, number of implausible counts.
    type Columns = (Vec<u8>, i64, i64, i64);
    let (now, region) = (NOW.0.cast_signed(), region.as_bytes());
    let rows: Vec<Columns> = if scene.is_mysql() {
        let import = sqlx::query(OLD_IMPORT_MYSQL).bind(now).bind(region).bind(100);
        let rows = import.fetch_all(&mut scene.mysql().await).await.unwrap();
        let number = |row: &MySqlRow, column: usize| row.try_get_unchecked(column).unwrap();
        rows.iter().map(|row| (row.get(2), number(row, 3), number(row, 5), number(row, 6))).collect()
    } else {
        let mut connection = SqliteConnection::connect(&scene.url).await.unwrap();
        let import = sqlx::query(OLD_IMPORT_SQLITE).bind(now).bind(region).bind(100);
        let rows = import.fetch_all(&mut connection).await.unwrap();
        rows.iter().map(|row| (row.get(2), row.get(3), row.get(5), row.get(6))).collect()
    };
    let cells = rows.into_iter().filter(|(_, duration_ms, ..)| *duration_ms > 0);
    let mut sums: Vec<_> = cells
        .map(|(identifier, _, sum, implausible)| {
            assert_eq!(implausible, 0);
            (String::from_utf8(identifier).unwrap(), sum.cast_unsigned())
        })
        .collect();
    sums.sort();
    sums
}

pub async fn an_earlier_version_beside_this_one(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    old_publish(&scene, "a", &[row("x", 5)]).await;
    old_publish(&scene, "c", &[row("x", 50)]).await;
    a.send(&[limited("y", 3, 10)]).await;
    assert_eq!(old_import(&scene, "b").await, fed(&[("x", 55), ("y", 3)]));
    // Rows of before are in the full import, and not in the feed.
    assert_eq!(b.catch_up().await, fed(&[("y", 3)]));
    assert_eq!(import(&b.database).await, cells(&[row("x", 55), row("y", 3)]));
    // A packet that raises a row of before feeds it. One that does not leaves it.
    a.send(&[limited("x", 5, u64::MAX)]).await;
    assert_eq!(b.catch_up().await, []);
    a.send(&[limited("x", 6, 10)]).await;
    assert_eq!(b.catch_up().await, fed(&[("x", 6)]));
    assert_eq!(old_import(&scene, "b").await, fed(&[("x", 56), ("y", 3)]));
    // A writer of before that raises a row of a packet is in the full import.
    old_publish(&scene, "a", &[row("y", 4)]).await;
    old_publish(&scene, "a", &[row("x", 2)]).await;
    assert_eq!(b.catch_up().await, []);
    let imported = b.database.import(&whole(WITHIN)).await.unwrap();
    b.merge(imported.page.regions);
    assert_eq!((b.count("a", "x"), b.count("a", "y"), b.count("c", "x")), (6, 4, 50));
    let own = a.database.own(&whole(WITHIN)).await.unwrap();
    assert_eq!(sums(own), cells(&[row("x", 6), row("y", 4)]));
    // The next packet feeds what is above.
    a.send(&[limited("y", 5, 10)]).await;
    assert_eq!(b.catch_up().await, fed(&[("y", 5)]));
    assert_eq!(old_import(&scene, "b").await, fed(&[("x", 56), ("y", 5)]));
}
