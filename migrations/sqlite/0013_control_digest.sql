-- What the changes of live control have left in weir_controls. If the table has something else, the database begins a new
-- incarnation; so it does once after this migration, if there are controls.
-- The stamp of the last change.
ALTER TABLE weir_control_edition ADD COLUMN stamp INTEGER NOT NULL DEFAULT 0;
-- Of the controls up to the floor, those that expired until this time were dropped, in milliseconds since the Unix epoch.
ALTER TABLE weir_control_edition ADD COLUMN dropped_before INTEGER NOT NULL DEFAULT 0;
-- The number of rows, and the sum of their stamps.
ALTER TABLE weir_control_edition ADD COLUMN controls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE weir_control_edition ADD COLUMN stamps INTEGER NOT NULL DEFAULT 0;
