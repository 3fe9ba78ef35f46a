-- One row, which every change of live control writes.
CREATE TABLE IF NOT EXISTS weir_control_edition (
    id       INTEGER NOT NULL PRIMARY KEY,
    -- Random: another number is another database.
    incarnation     INTEGER NOT NULL,
    -- Of the last change.
    revision INTEGER NOT NULL,
    -- The highest revision that was dropped.
    floor    INTEGER NOT NULL
) STRICT;
