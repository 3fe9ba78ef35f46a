-- One row for each bucket, locked while an attempt in it is decided. It has no other content, so it may be deleted at
-- any time; the next attempt inserts it again.
CREATE TABLE IF NOT EXISTS zone_bucket_lock (
    zone_id    INT UNSIGNED   NOT NULL,
    bucket_key VARBINARY(255) NOT NULL,
    -- UTC. Every attempt writes it, so that replicated servers that compare the writes of transactions detect
    -- concurrent attempts.
    used_at    DATETIME(6)    NOT NULL,
    -- For the cleanup. Its index changes once a day instead of with every attempt.
    used_on    DATE GENERATED ALWAYS AS (CAST(used_at AS DATE)) STORED,
    -- The only unique key, and the clustered index: a lock on it locks one record and no gap beside it.
    PRIMARY KEY (zone_id, bucket_key),
    INDEX used_on_idx (used_on)
) ENGINE = InnoDB
