-- The audit of live control: author, time, and the control before and after each change. was and is_now are JSON, or
-- empty if there was no control.
CREATE TABLE IF NOT EXISTS weir_control_audit (
    id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    created_at INTEGER NOT NULL,
    author     BLOB    NOT NULL,
    automatic  INTEGER NOT NULL,
    region     BLOB    NOT NULL,
    -- 1 set, 2 deleted.
    action     INTEGER NOT NULL,
    workspace  BLOB    NOT NULL,
    scope      BLOB    NOT NULL,
    identifier BLOB    NOT NULL,
    network    BLOB    NOT NULL,
    window_ms  INTEGER NOT NULL,
    slot       INTEGER NOT NULL,
    revision   INTEGER NOT NULL,
    was        BLOB    NOT NULL,
    is_now     BLOB    NOT NULL,
    reason     BLOB    NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS weir_control_audit_workspace_idx ON weir_control_audit (workspace, id);
CREATE INDEX IF NOT EXISTS weir_control_audit_created_at_idx ON weir_control_audit (created_at);
