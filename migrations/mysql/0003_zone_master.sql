-- What the ledger limits: in each zone, how much may be used in any window of so many seconds.
CREATE TABLE IF NOT EXISTS zone_master (
    id          INT UNSIGNED    NOT NULL,
    description TEXT CHARACTER SET utf8mb4 NOT NULL,
    rate        BIGINT UNSIGNED NOT NULL,
    -- Seconds.
    `window`    INT UNSIGNED    NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB
