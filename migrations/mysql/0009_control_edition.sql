-- One row. Every change of live control locks it, so changes become visible in the order of their revisions. It states what the
-- changes have left in weir_controls: if the table has something else, the database begins a new incarnation.
CREATE TABLE IF NOT EXISTS weir_control_edition (
    id             TINYINT UNSIGNED NOT NULL,
    -- Random; a different value means a different or wiped database.
    incarnation    BIGINT UNSIGNED  NOT NULL,
    -- The revision of the last change, and its stamp.
    revision       BIGINT UNSIGNED  NOT NULL,
    stamp          BIGINT UNSIGNED  NOT NULL DEFAULT 0,
    -- The highest revision that was dropped.
    floor          BIGINT UNSIGNED  NOT NULL,
    -- Of the controls up to the floor, those that expired until this time were dropped, in milliseconds since the Unix epoch.
    dropped_before BIGINT UNSIGNED  NOT NULL DEFAULT 0,
    -- The number of rows, and the sum of their stamps. Signed, so that no change fails after rows were deleted by hand.
    controls       BIGINT           NOT NULL DEFAULT 0,
    stamps         BIGINT           NOT NULL DEFAULT 0,
    PRIMARY KEY (id)
) ENGINE = InnoDB
