-- A random number of each change of live control. A reader compares the sum of those in the table with what it has read.
ALTER TABLE weir_controls
    ADD COLUMN stamp BIGINT UNSIGNED NOT NULL DEFAULT 0
