-- Decides an attempt with a cost of 1, for calls by hand.
CREATE PROCEDURE check_velocity(IN p_zone_id BIGINT, IN p_bucket_key LONGBLOB)
    MODIFIES SQL DATA
    SQL SECURITY DEFINER
    COMMENT 'Decides and records an attempt that costs 1: zone, bucket'
BEGIN
    CALL check_velocity_cost(p_zone_id, p_bucket_key, 1, '');
END
