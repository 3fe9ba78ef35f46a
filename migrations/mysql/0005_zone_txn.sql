-- Every attempt, allowed or not.
CREATE TABLE IF NOT EXISTS zone_txn (
    id         BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
    zone_id    INT UNSIGNED     NOT NULL,
    bucket_key VARBINARY(255)   NOT NULL,
    -- 0: allowed. 1: blocked by its zone. 2: refunded, as another limit refused what this one had allowed.
    blocked    TINYINT UNSIGNED NOT NULL,
    -- UTC, whatever the time zone of whoever reads it.
    created_at DATETIME(6)      NOT NULL,
    cost       BIGINT UNSIGNED  NOT NULL,
    -- Of the aggregator that asked; empty if a person did.
    region     VARBINARY(48)    NOT NULL,
    -- Whether the zone counts it.
    counted    TINYINT UNSIGNED GENERATED ALWAYS AS (blocked = 0 AND cost > 0) STORED,
    PRIMARY KEY (id),
    -- For the count, which reads what counts in the window, and nothing but this index.
    INDEX counted_idx (zone_id, bucket_key, counted, created_at, cost),
    -- For a bucket's history; the id comes last of itself.
    INDEX history_idx (zone_id, bucket_key),
    -- For the cleanup.
    INDEX created_at_idx (zone_id, created_at)
) ENGINE = InnoDB
