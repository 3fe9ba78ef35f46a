-- One row for each bucket, locked while an attempt in it is decided. It holds nothing else, so it may be deleted at any
-- time: whoever needs it makes it again.
CREATE TABLE IF NOT EXISTS zone_bucket_lock (
    zone_id    INT UNSIGNED   NOT NULL,
    bucket_key VARBINARY(255) NOT NULL,
    -- UTC. Every attempt writes it, so that servers which compare what transactions wrote see two that met.
    used_at    DATETIME(6)    NOT NULL,
    -- For the cleanup. Its index changes once a day and not with every attempt.
    used_on    DATE GENERATED ALWAYS AS (CAST(used_at AS DATE)) STORED,
    -- The only unique key, and the table itself: a lock on it is a lock on one record and on no gap beside it.
    PRIMARY KEY (zone_id, bucket_key),
    INDEX used_on_idx (used_on)
) ENGINE = InnoDB
