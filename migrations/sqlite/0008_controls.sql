-- Live control: the newest word on each target and slot, what is deleted or expired included until the cleanup. What a
-- target does not have is empty, or 0.
CREATE TABLE IF NOT EXISTS weir_controls (
    workspace  BLOB    NOT NULL,
    -- A namespace, * for all, or a rule's name.
    scope      BLOB    NOT NULL,
    identifier BLOB    NOT NULL,
    network    BLOB    NOT NULL,
    window_ms  INTEGER NOT NULL,
    -- 1 override, 2 credit, 3 reset, 4 shadow switch.
    slot       INTEGER NOT NULL,
    -- 1 limit, 2 exemption, 3 ban, 4 credit, 5 reset, 6 shadow switch.
    kind       INTEGER NOT NULL,
    amount     INTEGER NOT NULL,
    -- Milliseconds since the Unix epoch, here and below; 0 for ever.
    expires_at INTEGER NOT NULL,
    reason     BLOB    NOT NULL,
    author     BLOB    NOT NULL,
    -- A rule said it, not a person.
    automatic  INTEGER NOT NULL,
    deleted    INTEGER NOT NULL,
    revision   INTEGER NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (workspace, scope, identifier, network, window_ms, slot)
) STRICT;
