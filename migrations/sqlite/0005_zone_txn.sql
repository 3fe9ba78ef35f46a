-- Every attempt, allowed or not. Whoever decides one locks the whole database, so no bucket has a lock of its own.
CREATE TABLE IF NOT EXISTS zone_txn (
    -- Never given twice, not even after the newest was deleted.
    id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    zone_id    INTEGER NOT NULL,
    bucket_key BLOB    NOT NULL,
    -- 0: allowed. 1: blocked by its zone. 2: refunded, as another limit refused what this one had allowed.
    blocked    INTEGER NOT NULL,
    -- Microseconds since the Unix epoch.
    created_at INTEGER NOT NULL,
    cost       INTEGER NOT NULL,
    -- Of the aggregator that asked.
    region     BLOB    NOT NULL
) STRICT;

-- For the count, which reads what counts in the window, and nothing but this index.
CREATE INDEX IF NOT EXISTS counted_idx ON zone_txn (zone_id, bucket_key, created_at, cost)
WHERE blocked = 0 AND cost > 0;

-- For a bucket's history; the id comes last of itself.
CREATE INDEX IF NOT EXISTS history_idx ON zone_txn (zone_id, bucket_key);

-- For the cleanup.
CREATE INDEX IF NOT EXISTS created_at_idx ON zone_txn (zone_id, created_at);
