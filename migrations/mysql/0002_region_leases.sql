-- The region lease: which aggregator serves a region that has no Redis. There must be only one.
CREATE TABLE IF NOT EXISTS weir_region_leases (
    region     VARBINARY(48)   NOT NULL,
    holder     BINARY(16)      NOT NULL,
    -- Milliseconds since the Unix epoch, by the database's clock.
    expires_at BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (region)
) ENGINE = InnoDB
