-- Live control: the newest entry of each target and slot, deleted and expired ones included until the cleanup. Texts
-- are bytes, because collations would treat Alice and alice as equal. A missing part of a target is empty, or 0.
CREATE TABLE IF NOT EXISTS weir_controls (
    workspace  VARBINARY(64)    NOT NULL,
    -- A namespace, * for all, or the name of a rule.
    scope      VARBINARY(64)    NOT NULL,
    identifier VARBINARY(256)   NOT NULL,
    network    VARBINARY(64)    NOT NULL,
    window_ms  BIGINT UNSIGNED  NOT NULL,
    -- 1 override, 2 credit, 3 reset, 4 shadow switch.
    slot       TINYINT UNSIGNED NOT NULL,
    -- 1 limit, 2 exemption, 3 ban, 4 credit, 5 reset, 6 shadow switch.
    kind       TINYINT UNSIGNED NOT NULL,
    amount     BIGINT UNSIGNED  NOT NULL,
    -- Milliseconds since the Unix epoch, as are the times below; 0 for no expiry.
    expires_at BIGINT UNSIGNED  NOT NULL,
    reason     VARBINARY(1000)  NOT NULL,
    author     VARBINARY(128)   NOT NULL,
    -- Whether a rule set it, not a person.
    automatic  TINYINT UNSIGNED NOT NULL,
    deleted    TINYINT UNSIGNED NOT NULL,
    revision   BIGINT UNSIGNED  NOT NULL,
    created_at BIGINT UNSIGNED  NOT NULL,
    updated_at BIGINT UNSIGNED  NOT NULL,
    -- A random number of the change. A reader compares the sum of those in the table with what it has read.
    stamp      BIGINT UNSIGNED  NOT NULL DEFAULT 0,
    PRIMARY KEY (workspace, scope, identifier, network, window_ms, slot),
    -- For reading controls newer than a revision.
    CONSTRAINT weir_controls_revision UNIQUE (revision)
) ENGINE = InnoDB
