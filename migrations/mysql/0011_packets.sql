-- The packets of aggregators: a reader reads the rows of a writer whose version is above its cursor.
ALTER TABLE ratelimit_window_counts
    -- The lowest limit that the region has applied to the cell; 2^53 if it is unknown.
    ADD COLUMN lowest_limit BIGINT UNSIGNED NOT NULL DEFAULT 9007199254740992,
    -- The aggregator that last raised the row, and the number of its packet; 0 if an earlier version of the aggregator wrote it.
    ADD COLUMN writer       INT UNSIGNED    NOT NULL DEFAULT 0,
    ADD COLUMN version      BIGINT UNSIGNED NOT NULL DEFAULT 0,
    ADD INDEX feed_idx (writer, version)
