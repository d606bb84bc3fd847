-- How the functions that are called from outside choose their plans, and with them whatever they
-- call.
--
-- By index, whatever the figures say: plans live as long as a session, and one that was made while
-- a table was empty must not walk it when it is full. Once for a session: to plan anew for each
-- call takes longer than most calls do. Never compiled: nothing here runs long enough to win that
-- back. `prune` plans each time, because its limits differ by the day.
DO $$
DECLARE f record;
BEGIN
    FOR f IN SELECT oid::regprocedure AS is, proname AS name FROM pg_proc
             WHERE pronamespace = 'matins'::regnamespace AND proconfig IS NOT NULL LOOP
        EXECUTE format('ALTER FUNCTION %s SET jit = off SET enable_hashjoin = off
            SET enable_mergejoin = off SET enable_seqscan = off SET plan_cache_mode = %s', f.is,
            CASE f.name WHEN 'prune' THEN 'auto' ELSE 'force_generic_plan' END);
    END LOOP;
END $$;
