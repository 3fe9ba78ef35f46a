-- What the ledger limits: in each zone, how much may be used in any window of so many seconds.
CREATE TABLE IF NOT EXISTS zone_master (
    id          INTEGER NOT NULL PRIMARY KEY,
    description TEXT    NOT NULL,
    rate        INTEGER NOT NULL,
    -- Seconds.
    "window"    INTEGER NOT NULL
) STRICT;
