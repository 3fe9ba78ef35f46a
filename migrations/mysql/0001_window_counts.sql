-- What each region has used of each cell. The text columns are bytes: collations would take Alice and alice, or a name
-- and the same name with a space behind it, for one.
CREATE TABLE IF NOT EXISTS ratelimit_window_counts (
    pk           BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    workspace_id VARBINARY(191)  NOT NULL,
    namespace    VARBINARY(255)  NOT NULL,
    identifier   VARBINARY(255)  NOT NULL,
    duration_ms  BIGINT UNSIGNED NOT NULL,
    sequence     BIGINT          NOT NULL,
    region       VARBINARY(48)   NOT NULL,
    count        BIGINT UNSIGNED NOT NULL,
    expires_at   BIGINT UNSIGNED NOT NULL,
    updated_at   BIGINT UNSIGNED NOT NULL,
    CONSTRAINT ratelimit_window_counts_pk PRIMARY KEY (pk),
    -- For the upsert. It also serves whoever looks for a cell, as its columns come first.
    CONSTRAINT unique_window_region UNIQUE (workspace_id, namespace, identifier, duration_ms, sequence, region),
    -- For the import, which reads what is alive, and the cleanup, which deletes what is not.
    INDEX expires_at_idx (expires_at)
) ENGINE = InnoDB
