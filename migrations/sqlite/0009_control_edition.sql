-- One row, which every change of live control writes. It states what the changes have left in weir_controls: if the table has
-- something else, the database begins a new incarnation.
CREATE TABLE IF NOT EXISTS weir_control_edition (
    id             INTEGER NOT NULL PRIMARY KEY,
    -- Random; a different value means a different or wiped database.
    incarnation    INTEGER NOT NULL,
    -- The revision of the last change, and its stamp.
    revision       INTEGER NOT NULL,
    stamp          INTEGER NOT NULL DEFAULT 0,
    -- The highest revision that was dropped.
    floor          INTEGER NOT NULL,
    -- Of the controls up to the floor, those that expired until this time were dropped, in milliseconds since the Unix epoch.
    dropped_before INTEGER NOT NULL DEFAULT 0,
    -- The number of rows, and the sum of their stamps.
    controls       INTEGER NOT NULL DEFAULT 0,
    stamps         INTEGER NOT NULL DEFAULT 0
) STRICT;
