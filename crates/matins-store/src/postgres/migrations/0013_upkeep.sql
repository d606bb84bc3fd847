-- What keeps tables small. Nothing here decides what may go: the cutoffs come from outside.

-- Sums what has been counted so far, if that is more than `p_many` rows.
CREATE FUNCTION fold_tally(p_many integer) RETURNS void
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
BEGIN
    IF (SELECT count(*) FROM (SELECT 1 FROM tally LIMIT p_many + 1) AS x) <= p_many THEN
        RETURN;
    END IF;
    WITH gone AS (DELETE FROM tally RETURNING lane, place, n)
    INSERT INTO tally (lane, place, n)
    SELECT lane, place, sum(n) FROM gone GROUP BY lane, place HAVING sum(n) <> 0;
END $$;

-- A partition of `history` for each of the days from today on.
CREATE FUNCTION make_partitions(p_now timestamptz, p_days integer) RETURNS void
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
DECLARE v_day timestamp; v_name text;
BEGIN
    FOR i IN 0..p_days LOOP
        v_day := date_trunc('day', p_now AT TIME ZONE 'UTC') + i * interval '1 day';
        v_name := 'history_' || to_char(v_day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('matins.' || v_name) IS NOT NULL;
        BEGIN
            EXECUTE format(
                'CREATE TABLE %I PARTITION OF history FOR VALUES FROM (%L) TO (%L)',
                v_name, v_day AT TIME ZONE 'UTC', (v_day + interval '1 day') AT TIME ZONE 'UTC');
        EXCEPTION
            -- Tasks of that day lie in `history_other` already, where they are pruned as well; or
            -- somebody reads for long, or was quicker: there are days left.
            WHEN check_violation OR lock_not_available OR duplicate_table THEN NULL;
        END;
    END LOOP;
END $$;

-- Drops the partitions in which everything is over. Their rows are counted out of `tally`.
CREATE FUNCTION drop_partitions(p_cutoff timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_part record; v_gone bigint := 0; v_n bigint;
BEGIN
    FOR v_part IN
        SELECT c.relname AS name FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'matins.history'::regclass AND c.relname ~ '^history_[0-9]{8}$'
          AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC'
              <= p_cutoff
        ORDER BY 1
    LOOP
        BEGIN
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', v_part.name);
            EXECUTE format('DELETE FROM attempt WHERE seq IN (
                SELECT seq FROM %I WHERE attempt > 1)', v_part.name);
            EXECUTE format('INSERT INTO tally (lane, place, n)
                SELECT lane, CASE state WHEN 2 THEN 6 ELSE 8 END, -count(*) FROM %I
                GROUP BY 1, 2', v_part.name);
            EXECUTE format('SELECT count(*) FROM %I', v_part.name) INTO v_n;
            EXECUTE format('DROP TABLE %I', v_part.name);
            v_gone := v_gone + v_n;
        EXCEPTION
            -- Somebody reads it for long: the next time.
            WHEN lock_not_available THEN RETURN v_gone;
        END;
    END LOOP;
    RETURN v_gone;
END $$;

-- Deletes what was over before the cutoffs (NULL: nothing is), at most `p_limit` of each kind;
-- days of which everything is over go as a whole.
CREATE FUNCTION prune(
    p_completed timestamptz, p_cancelled timestamptz, p_failed timestamptz,
    p_ledger timestamptz, p_occurrences timestamptz, p_audit timestamptz, p_traces timestamptz,
    p_limit integer, OUT tasks bigint, OUT ledger bigint, OUT occurrences bigint,
    OUT audited bigint, OUT operations bigint, OUT workers bigint, OUT more boolean
) LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
#variable_conflict use_column
DECLARE v_dropped bigint; v_large oid[];
BEGIN
    -- What is made and dropped here locks others out for a moment, and must not wait for long.
    PERFORM set_config('lock_timeout', '2s', true);
    PERFORM make_partitions(clock_timestamp(), 3);
    v_dropped := drop_partitions(least(p_completed, p_cancelled));
    PERFORM set_config('lock_timeout', '0', true);
    -- A large day is not taken apart row by row: it goes as a whole when all of it is over.
    v_large := ARRAY(SELECT c.oid FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
                     WHERE i.inhparent = 'matins.history'::regclass
                       AND c.relname <> 'history_other' AND c.reltuples > 50000);
    WITH over AS (
        SELECT at, seq, failed FROM (
            (SELECT finished_at AS at, seq, false AS failed FROM history
             WHERE state = 2 AND finished_at <= p_completed AND tableoid <> ALL(v_large)
             ORDER BY 1 LIMIT p_limit)
            UNION ALL
            (SELECT finished_at, seq, false FROM history
             WHERE state = 4 AND finished_at <= p_cancelled AND tableoid <> ALL(v_large)
             ORDER BY 1 LIMIT p_limit)
            UNION ALL
            (SELECT dismissed_at, seq, true FROM dead_letter
             WHERE dismissed_at <= p_failed ORDER BY 1 LIMIT p_limit)
        ) AS x ORDER BY at, seq LIMIT p_limit
    ), h AS (
        DELETE FROM history WHERE seq = ANY(ARRAY(SELECT seq FROM over WHERE NOT failed))
            AND finished_at <= greatest(p_completed, p_cancelled)
        RETURNING seq, lane, CASE state WHEN 2 THEN 6 ELSE 8 END AS place
    ), d AS (
        DELETE FROM dead_letter WHERE seq = ANY(ARRAY(SELECT seq FROM over WHERE failed))
        RETURNING seq
    ), t AS (
        DELETE FROM task WHERE seq = ANY(ARRAY(SELECT seq FROM d))
        RETURNING seq, lane, 7 AS place
    ), a AS (
        DELETE FROM attempt WHERE seq = ANY(ARRAY(SELECT seq FROM over))
    ), g AS (
        SELECT * FROM h UNION ALL SELECT * FROM t
    ), c AS (
        INSERT INTO tally (lane, place, n) SELECT lane, place, -count(*) FROM g GROUP BY 1, 2
    )
    SELECT count(*) + v_dropped INTO tasks FROM g;
    WITH k AS (
        DELETE FROM exec_key WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM exec_key WHERE at <= p_ledger ORDER BY at LIMIT p_limit))
        RETURNING 1)
    SELECT count(*) INTO ledger FROM k;
    WITH o AS (
        DELETE FROM occurrence WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM occurrence WHERE coalesce(fired_at, time) <= p_occurrences
            ORDER BY coalesce(fired_at, time) LIMIT p_limit))
        RETURNING schedule_uid, kind, count
    ), s AS (
        UPDATE schedule AS s SET unrecorded = s.unrecorded + x.n
        FROM (SELECT schedule_uid, sum(count) AS n FROM o WHERE kind = 'scheduled'
              GROUP BY 1) AS x
        WHERE s.uid = x.schedule_uid)
    SELECT count(*) INTO occurrences FROM o;
    WITH a AS (
        DELETE FROM audit WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM audit WHERE time <= p_audit ORDER BY time LIMIT p_limit))
        RETURNING 1)
    SELECT count(*) INTO audited FROM a;
    WITH o AS (
        DELETE FROM operation WHERE id IN (
            SELECT id FROM operation WHERE NOT running AND finished_at <= p_audit
            ORDER BY finished_at, id LIMIT p_limit)
        RETURNING 1)
    SELECT count(*) INTO operations FROM o;
    WITH w AS (
        DELETE FROM worker WHERE name IN (
            SELECT w.name FROM worker AS w WHERE w.lease_until <= p_completed
              AND NOT EXISTS (SELECT 1 FROM running AS r WHERE r.worker = w.name)
            ORDER BY w.lease_until, w.name LIMIT p_limit)
        RETURNING 1)
    SELECT count(*) INTO workers FROM w;
    DELETE FROM turn AS u WHERE u.running = 0 AND coalesce(u.freed, '-infinity') < p_traces
        AND NOT EXISTS (SELECT 1 FROM slot AS s WHERE s.type = u.type AND s.key = u.key);
    more := EXISTS (SELECT 1 FROM history WHERE state = 2 AND finished_at <= p_completed
                    AND tableoid <> ALL(v_large))
        OR EXISTS (SELECT 1 FROM history WHERE state = 4 AND finished_at <= p_cancelled
                   AND tableoid <> ALL(v_large))
        OR EXISTS (SELECT 1 FROM dead_letter WHERE dismissed_at <= p_failed)
        OR EXISTS (SELECT 1 FROM exec_key WHERE at <= p_ledger)
        OR EXISTS (SELECT 1 FROM occurrence WHERE coalesce(fired_at, time) <= p_occurrences)
        OR EXISTS (SELECT 1 FROM audit WHERE time <= p_audit)
        OR EXISTS (SELECT 1 FROM operation WHERE NOT running AND finished_at <= p_audit)
        OR EXISTS (SELECT 1 FROM worker AS w WHERE w.lease_until <= p_completed
                   AND NOT EXISTS (SELECT 1 FROM running AS r WHERE r.worker = w.name));
END $$;
