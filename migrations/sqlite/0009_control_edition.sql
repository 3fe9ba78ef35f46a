-- One row, which every change of live control writes.
CREATE TABLE IF NOT EXISTS weir_control_edition (
    id       INTEGER NOT NULL PRIMARY KEY,
    -- Random; a different value means a different or wiped database.
    incarnation     INTEGER NOT NULL,
    -- The revision of the last change.
    revision INTEGER NOT NULL,
    -- The highest revision that was dropped.
    floor    INTEGER NOT NULL
) STRICT;
