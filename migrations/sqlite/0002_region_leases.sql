-- Which aggregator serves a region. Without Redis there must be only one.
CREATE TABLE IF NOT EXISTS weir_region_leases (
    region     BLOB    NOT NULL PRIMARY KEY,
    holder     BLOB    NOT NULL,
    -- Milliseconds since the Unix epoch by the clock of the machine that asks.
    expires_at INTEGER NOT NULL
) STRICT;
