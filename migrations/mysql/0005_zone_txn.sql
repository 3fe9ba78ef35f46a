-- Every attempt, allowed or not.
CREATE TABLE IF NOT EXISTS zone_txn (
    id         BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
    zone_id    INT UNSIGNED     NOT NULL,
    bucket_key VARBINARY(255)   NOT NULL,
    -- 0: allowed. 1: blocked by its zone. 2: refunded, because another limit denied the request.
    blocked    TINYINT UNSIGNED NOT NULL,
    -- UTC, whatever the time zone of the session.
    created_at DATETIME(6)      NOT NULL,
    cost       BIGINT UNSIGNED  NOT NULL,
    -- The region of the aggregator that made the attempt; empty if it was made by hand.
    region     VARBINARY(48)    NOT NULL,
    -- Whether the zone counts it.
    counted    TINYINT UNSIGNED GENERATED ALWAYS AS (blocked = 0 AND cost > 0) STORED,
    PRIMARY KEY (id),
    -- For the count, which reads only the counted attempts in the window, and only this index.
    INDEX counted_idx (zone_id, bucket_key, counted, created_at, cost),
    -- For a bucket's history. InnoDB appends the id.
    INDEX history_idx (zone_id, bucket_key),
    -- For the cleanup.
    INDEX created_at_idx (zone_id, created_at)
) ENGINE = InnoDB
