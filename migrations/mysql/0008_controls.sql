-- Live control: the newest word on each target and slot, what is deleted or expired included until the cleanup. Texts are
-- bytes, as collations would take Alice and alice for one. What a target does not have is empty, or 0.
CREATE TABLE IF NOT EXISTS weir_controls (
    workspace  VARBINARY(64)    NOT NULL,
    -- A namespace, * for all, or a rule's name.
    scope      VARBINARY(64)    NOT NULL,
    identifier VARBINARY(256)   NOT NULL,
    network    VARBINARY(64)    NOT NULL,
    window_ms  BIGINT UNSIGNED  NOT NULL,
    -- 1 override, 2 credit, 3 reset, 4 shadow switch.
    slot       TINYINT UNSIGNED NOT NULL,
    -- 1 limit, 2 exemption, 3 ban, 4 credit, 5 reset, 6 shadow switch.
    kind       TINYINT UNSIGNED NOT NULL,
    amount     BIGINT UNSIGNED  NOT NULL,
    -- Milliseconds since the Unix epoch, here and below; 0 for ever.
    expires_at BIGINT UNSIGNED  NOT NULL,
    reason     VARBINARY(1000)  NOT NULL,
    author     VARBINARY(128)   NOT NULL,
    -- A rule said it, not a person.
    automatic  TINYINT UNSIGNED NOT NULL,
    deleted    TINYINT UNSIGNED NOT NULL,
    revision   BIGINT UNSIGNED  NOT NULL,
    created_at BIGINT UNSIGNED  NOT NULL,
    updated_at BIGINT UNSIGNED  NOT NULL,
    PRIMARY KEY (workspace, scope, identifier, network, window_ms, slot),
    -- For who reads what is newer than he knows.
    CONSTRAINT weir_controls_revision UNIQUE (revision)
) ENGINE = InnoDB
