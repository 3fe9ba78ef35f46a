-- Every attempt, allowed or not. Deciding one locks the whole database, so buckets have no locks.
CREATE TABLE IF NOT EXISTS zone_txn (
    -- Never reused, not even after the newest row was deleted.
    id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    zone_id    INTEGER NOT NULL,
    bucket_key BLOB    NOT NULL,
    -- 0: allowed. 1: blocked by its zone. 2: refunded, because another limit denied the request.
    blocked    INTEGER NOT NULL,
    -- Microseconds since the Unix epoch.
    created_at INTEGER NOT NULL,
    cost       INTEGER NOT NULL,
    -- The region of the aggregator that made the attempt.
    region     BLOB    NOT NULL
) STRICT;

-- For the count, which reads only the counted attempts in the window, and only this index.
CREATE INDEX IF NOT EXISTS counted_idx ON zone_txn (zone_id, bucket_key, created_at, cost)
WHERE blocked = 0 AND cost > 0;

-- For a bucket's history. SQLite appends the id.
CREATE INDEX IF NOT EXISTS history_idx ON zone_txn (zone_id, bucket_key);

-- For the cleanup.
CREATE INDEX IF NOT EXISTS created_at_idx ON zone_txn (zone_id, created_at);
