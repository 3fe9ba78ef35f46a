-- Each region's count of each cell. The text columns are bytes, because collations would treat Alice and alice, or a
-- name with and without a trailing space, as equal.
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
    -- The lowest limit that the region has applied to the cell; 2^53 if it is unknown.
    lowest_limit BIGINT UNSIGNED NOT NULL DEFAULT 9007199254740992,
    -- The aggregator that last raised the row, and the number of its packet; 0 if a person wrote it.
    writer       INT UNSIGNED    NOT NULL DEFAULT 0,
    version      BIGINT UNSIGNED NOT NULL DEFAULT 0,
    CONSTRAINT ratelimit_window_counts_pk PRIMARY KEY (pk),
    -- For the upsert. It also serves lookups of a key, because the columns of the key come first.
    CONSTRAINT unique_window_region UNIQUE (workspace_id, namespace, identifier, duration_ms, sequence, region),
    -- For the import, which reads rows that have not expired, and the cleanup, which deletes expired ones.
    INDEX expires_at_idx (expires_at),
    -- For readers of packets: the rows of a writer whose version is above a cursor.
    INDEX feed_idx (writer, version)
) ENGINE = InnoDB
