-- One row, which every change of live control locks: so changes are seen in the order of their revisions.
CREATE TABLE IF NOT EXISTS weir_control_edition (
    id       TINYINT UNSIGNED NOT NULL,
    -- Random: another number is another database.
    incarnation     BIGINT UNSIGNED  NOT NULL,
    -- Of the last change.
    revision BIGINT UNSIGNED  NOT NULL,
    -- The highest revision that was dropped.
    floor    BIGINT UNSIGNED  NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB
