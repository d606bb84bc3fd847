-- Purpose: every object of a schema with its definition, in words that are the same for the same
-- object of another schema. Without partitions that come and go, and the list of migrations.
-- Index: the catalogue's.
WITH relation AS (
    SELECT c.oid, c.relname, c.relkind, c.reloptions
    FROM pg_class AS c
    WHERE c.relnamespace = to_regnamespace($1) AND NOT c.relispartition
      AND c.relname <> 'migration'
)
SELECT CASE r.relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type'
                      ELSE 'table' END AS kind,
       r.relname::text AS name,
       concat_ws(' ', r.relkind, array_to_string(r.reloptions, ','),
                 CASE r.relkind WHEN 'v' THEN pg_get_viewdef(r.oid) END) AS definition
FROM relation AS r WHERE r.relkind IN ('r', 'p', 'v', 'S', 'c')
UNION ALL
SELECT 'column', r.relname || '.' || a.attname,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod),
                 CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                 nullif(a.attidentity, ''), pg_get_expr(d.adbin, d.adrelid),
                 (SELECT l.collname FROM pg_collation AS l WHERE l.oid = a.attcollation))
FROM relation AS r
JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef AS d ON d.adrelid = r.oid AND d.adnum = a.attnum
WHERE r.relkind IN ('r', 'p', 'c')
UNION ALL
SELECT 'index', i.relname::text, pg_get_indexdef(i.oid)
FROM relation AS r JOIN pg_index AS x ON x.indrelid = r.oid
JOIN relation AS i ON i.oid = x.indexrelid
WHERE NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conindid = i.oid)
UNION ALL
SELECT 'constraint', r.relname || '.' || k.conname, pg_get_constraintdef(k.oid)
FROM relation AS r JOIN pg_constraint AS k ON k.conrelid = r.oid
WHERE k.contype <> 'n'
UNION ALL
SELECT 'function', p.oid::regprocedure::text,
       pg_get_functiondef(p.oid) || CASE WHEN p.proacl IS NULL OR EXISTS (
           SELECT FROM aclexplode(p.proacl) AS g WHERE g.grantee = 0) THEN ''
           ELSE '; REVOKE ALL ON FUNCTION ' || p.oid::regprocedure || ' FROM PUBLIC' END
FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace($1) AND p.prokind = 'f'
