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
    CONSTRAINT unique_window_region UNIQUE (workspace_id, namespace, identifier, duration_ms, sequence, region)
) STRICT;

CREATE INDEX IF NOT EXISTS expires_at_idx ON ratelimit_window_counts (expires_at);
