-- Decides an attempt and records it. The attempt is allowed if its cost plus the counted costs in the window before now
-- are at most the zone's rate. An attempt counts while it is younger than the window. Returns one row.
--
-- The procedure does not depend on the session's settings, and commits a transaction that the session has open. An
-- error rolls the attempt back and is raised again. A deadlock, which rolls back the whole transaction, is retried
-- first.
CREATE PROCEDURE check_velocity_cost(
    -- Wider than the columns, because a session without strict mode truncates values before the procedure can check
    -- them.
    IN p_zone_id    BIGINT,
    IN p_bucket_key LONGBLOB,
    IN p_cost       BIGINT,
    IN p_region     LONGBLOB
)
    MODIFIES SQL DATA
    SQL SECURITY DEFINER
    COMMENT 'Decides and records an attempt: zone, bucket, cost, region'
BEGIN
    DECLARE v_rate, v_window, v_used, v_excess, v_id BIGINT UNSIGNED;
    DECLARE v_blocked TINYINT UNSIGNED DEFAULT 0;
    DECLARE v_now, v_since, v_oldest, v_enough DATETIME(6);
    DECLARE v_deadlocks INT DEFAULT 0;
    DECLARE v_error VARCHAR(128);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK AND NO CHAIN NO RELEASE;
        RESIGNAL;
    END;

    COMMIT AND NO CHAIN NO RELEASE;
    -- The session may have set a fixed time.
    SET timestamp = DEFAULT;
    IF p_zone_id IS NULL OR p_bucket_key IS NULL OR p_cost IS NULL OR p_region IS NULL THEN
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31002, MESSAGE_TEXT = 'check_velocity does not accept NULL';
    END IF;
    IF p_cost < 0 OR p_cost > 9007199254740992 THEN
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31002, MESSAGE_TEXT = 'check_velocity accepts costs of 0 to 2^53';
    END IF;
    IF LENGTH(p_bucket_key) > 255 OR LENGTH(p_region) > 48 THEN
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31002,
            MESSAGE_TEXT = 'check_velocity accepts buckets of up to 255 bytes and regions of up to 48';
    END IF;

    attempt: LOOP
    BEGIN
        DECLARE EXIT HANDLER FOR 1213
        BEGIN
            ROLLBACK AND NO CHAIN NO RELEASE;
            IF v_deadlocks >= 10 THEN
                RESIGNAL;
            END IF;
            SET v_deadlocks = v_deadlocks + 1;
        END;

        -- READ COMMITTED: reads see everything committed before, and gaps between rows are not locked.
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
        START TRANSACTION;
        SET v_rate = NULL, v_window = NULL, v_enough = NULL;
        SET v_error = CONCAT('there is no zone ', p_zone_id, ': see weir-aggregator zones');
        -- Not in the condition of IF, where a SELECT would lock the zone.
        SELECT rate INTO v_rate FROM zone_master WHERE id = p_zone_id;
        IF v_rate IS NULL THEN
            SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31001, MESSAGE_TEXT = v_error;
        END IF;

        -- One statement inserts and locks the row, so it cannot be deleted in between.
        INSERT INTO zone_bucket_lock (zone_id, bucket_key, used_at)
        VALUES (p_zone_id, p_bucket_key, UTC_TIMESTAMP(6))
        ON DUPLICATE KEY UPDATE used_at = UTC_TIMESTAMP(6);

        -- All below is read after the lock, which may have been waited for.
        SELECT rate, `window` INTO v_rate, v_window FROM zone_master WHERE id = p_zone_id;
        IF v_window IS NULL THEN
            SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31001, MESSAGE_TEXT = v_error;
        END IF;

        -- Attempts in the future, after the clock was set back, count.
        SET v_now = UTC_TIMESTAMP(6);
        SET v_since = v_now - INTERVAL v_window SECOND;
        SELECT COALESCE(SUM(cost), 0), MIN(created_at) INTO v_used, v_oldest
        FROM zone_txn FORCE INDEX (counted_idx)
        WHERE zone_id = p_zone_id AND bucket_key = p_bucket_key AND counted = 1 AND created_at > v_since;

        IF p_cost > v_rate THEN
            SET v_blocked = 1;
        ELSEIF v_used > v_rate - p_cost THEN
            SET v_blocked = 1, v_excess = v_used - (v_rate - p_cost);
            SELECT created_at INTO v_enough
            FROM (
                SELECT created_at, SUM(cost) OVER (ORDER BY created_at, id) AS gone
                FROM zone_txn FORCE INDEX (counted_idx)
                WHERE zone_id = p_zone_id AND bucket_key = p_bucket_key AND counted = 1 AND created_at > v_since
            ) AS leaving
            WHERE gone >= v_excess
            ORDER BY created_at
            LIMIT 1;
        ELSE
            SET v_blocked = 0, v_used = v_used + p_cost;
            SET v_oldest = COALESCE(v_oldest, IF(p_cost > 0, v_now, NULL));
        END IF;

        INSERT INTO zone_txn (zone_id, bucket_key, blocked, created_at, cost, region)
        VALUES (p_zone_id, p_bucket_key, v_blocked, v_now, p_cost, p_region);
        SET v_id = LAST_INSERT_ID();
        COMMIT AND NO CHAIN NO RELEASE;
        LEAVE attempt;
    END;
    END LOOP;

    SELECT v_blocked AS blocked,
           v_id AS transaction_id,
           p_zone_id AS zone_id,
           CAST(p_bucket_key AS BINARY) AS bucket_key,
           v_rate AS rate,
           v_window AS `window`,
           v_used AS used,
           -- Milliseconds until the oldest counted attempt expires, and until enough has expired for this cost; rounded
           -- up.
           COALESCE((TIMESTAMPDIFF(MICROSECOND, v_since, v_oldest) + 999) DIV 1000, 0) AS reset_ms,
           (TIMESTAMPDIFF(MICROSECOND, v_since, v_enough) + 999) DIV 1000 AS retry_after_ms;
END
