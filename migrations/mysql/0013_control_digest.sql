-- What the changes of live control have left in weir_controls. If the table has something else, the database begins a new
-- incarnation; so it does once after this migration, if there are controls.
ALTER TABLE weir_control_edition
    -- The stamp of the last change.
    ADD COLUMN stamp          BIGINT UNSIGNED NOT NULL DEFAULT 0,
    -- Of the controls up to the floor, those that expired until this time were dropped, in milliseconds since the Unix epoch.
    ADD COLUMN dropped_before BIGINT UNSIGNED NOT NULL DEFAULT 0,
    -- The number of rows, and the sum of their stamps. Signed, so that no change fails after rows were deleted by hand.
    ADD COLUMN controls       BIGINT          NOT NULL DEFAULT 0,
    ADD COLUMN stamps         BIGINT          NOT NULL DEFAULT 0
