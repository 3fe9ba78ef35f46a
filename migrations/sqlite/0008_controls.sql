-- Live control: the newest entry of each target and slot, deleted and expired ones included until the cleanup. A
-- missing part of a target is empty, or 0.
CREATE TABLE IF NOT EXISTS weir_controls (
    workspace  BLOB    NOT NULL,
    -- A namespace, * for all, or the name of a rule.
    scope      BLOB    NOT NULL,
    identifier BLOB    NOT NULL,
    network    BLOB    NOT NULL,
    window_ms  INTEGER NOT NULL,
    -- 1 override, 2 credit, 3 reset, 4 shadow switch.
    slot       INTEGER NOT NULL,
    -- 1 limit, 2 exemption, 3 ban, 4 credit, 5 reset, 6 shadow switch.
    kind       INTEGER NOT NULL,
    amount     INTEGER NOT NULL,
    -- Milliseconds since the Unix epoch, as are the times below; 0 for no expiry.
    expires_at INTEGER NOT NULL,
    reason     BLOB    NOT NULL,
    author     BLOB    NOT NULL,
    -- Whether a rule set it, not a person.
    automatic  INTEGER NOT NULL,
    deleted    INTEGER NOT NULL,
    revision   INTEGER NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    -- A random number of the change. A reader compares the sum of those in the table with what it has read.
    stamp      INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (workspace, scope, identifier, network, window_ms, slot)
) STRICT;
