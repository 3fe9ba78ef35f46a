-- Each region's count of each cell. The text columns are bytes, compared as bytes.
CREATE TABLE IF NOT EXISTS ratelimit_window_counts (
    pk           INTEGER NOT NULL PRIMARY KEY,
    workspace_id BLOB    NOT NULL,
    namespace    BLOB    NOT NULL,
    identifier   BLOB    NOT NULL,
    duration_ms  INTEGER NOT NULL,
    sequence     INTEGER NOT NULL,
    region       BLOB    NOT NULL,
    count        INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    -- The lowest limit that the region has applied to the cell; 2^53 if it is unknown.
    lowest_limit INTEGER NOT NULL DEFAULT 9007199254740992,
    -- The aggregator that last raised the row, and the number of its packet; 0 if a person wrote it.
    writer       INTEGER NOT NULL DEFAULT 0,
    version      INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT unique_window_region UNIQUE (workspace_id, namespace, identifier, duration_ms, sequence, region)
) STRICT;

CREATE INDEX IF NOT EXISTS expires_at_idx ON ratelimit_window_counts (expires_at);

-- For readers of packets: the rows of a writer whose version is above a cursor.
CREATE INDEX IF NOT EXISTS feed_idx ON ratelimit_window_counts (writer, version);
