-- The region lease: which aggregator serves a region that has no Redis. There must be only one.
CREATE TABLE IF NOT EXISTS weir_region_leases (
    region     BLOB    NOT NULL PRIMARY KEY,
    holder     BLOB    NOT NULL,
    -- Milliseconds since the Unix epoch, by the clock of the machine that sends the query.
    expires_at INTEGER NOT NULL
) STRICT;
