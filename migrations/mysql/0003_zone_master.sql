-- The zones of the ledger: the most that may be used in any window.
CREATE TABLE IF NOT EXISTS zone_master (
    id          INT UNSIGNED    NOT NULL,
    description TEXT CHARACTER SET utf8mb4 NOT NULL,
    rate        BIGINT UNSIGNED NOT NULL,
    -- In seconds.
    `window`    INT UNSIGNED    NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB
