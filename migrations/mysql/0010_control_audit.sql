-- The audit of live control: author, time, and the control before and after each change. was and is_now are JSON, or
-- empty if there was no control.
CREATE TABLE IF NOT EXISTS weir_control_audit (
    id         BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
    created_at BIGINT UNSIGNED  NOT NULL,
    author     VARBINARY(128)   NOT NULL,
    automatic  TINYINT UNSIGNED NOT NULL,
    region     VARBINARY(48)    NOT NULL,
    -- 1 set, 2 deleted.
    action     TINYINT UNSIGNED NOT NULL,
    workspace  VARBINARY(64)    NOT NULL,
    scope      VARBINARY(64)    NOT NULL,
    identifier VARBINARY(256)   NOT NULL,
    network    VARBINARY(64)    NOT NULL,
    window_ms  BIGINT UNSIGNED  NOT NULL,
    slot       TINYINT UNSIGNED NOT NULL,
    revision   BIGINT UNSIGNED  NOT NULL,
    was        VARBINARY(4000)  NOT NULL,
    is_now     VARBINARY(4000)  NOT NULL,
    reason     VARBINARY(1000)  NOT NULL,
    PRIMARY KEY (id),
    INDEX workspace_idx (workspace, id),
    INDEX created_at_idx (created_at)
) ENGINE = InnoDB
