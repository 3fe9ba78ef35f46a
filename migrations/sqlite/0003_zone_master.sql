-- The zones of the ledger: the most that may be used in any window.
CREATE TABLE IF NOT EXISTS zone_master (
    id          INTEGER NOT NULL PRIMARY KEY,
    description TEXT    NOT NULL,
    rate        INTEGER NOT NULL,
    -- In seconds.
    "window"    INTEGER NOT NULL
) STRICT;
