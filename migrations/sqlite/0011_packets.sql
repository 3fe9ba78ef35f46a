-- The packets of aggregators: a reader reads the rows of a writer whose version is above its cursor.
-- The lowest limit that the region has applied to the cell; 2^53 if it is unknown.
ALTER TABLE ratelimit_window_counts ADD COLUMN lowest_limit INTEGER NOT NULL DEFAULT 9007199254740992;
-- The aggregator that last raised the row, and the number of its packet; 0 if an earlier version of the aggregator wrote it.
ALTER TABLE ratelimit_window_counts ADD COLUMN writer INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ratelimit_window_counts ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
CREATE INDEX IF NOT EXISTS feed_idx ON ratelimit_window_counts (writer, version);
