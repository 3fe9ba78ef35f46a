-- One row. Every change of live control locks it, so changes become visible in the order of their revisions.
CREATE TABLE IF NOT EXISTS weir_control_edition (
    id       TINYINT UNSIGNED NOT NULL,
    -- Random; a different value means a different or wiped database.
    incarnation     BIGINT UNSIGNED  NOT NULL,
    -- The revision of the last change.
    revision BIGINT UNSIGNED  NOT NULL,
    -- The highest revision that was dropped.
    floor    BIGINT UNSIGNED  NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB
