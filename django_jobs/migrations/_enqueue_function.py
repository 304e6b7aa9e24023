"""The function ``django_jobs_enqueue``, which writes a job from SQL.

A changed function is a new file and a new migration; this one stays as it is.
"""

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

# SECURITY DEFINER, so that a role needs no more than EXECUTE; therefore all names are qualified, and
# PUBLIC may not call it. The columns are those of ENQUEUE_GATED in lifecycle/enqueueing.py. A key is
# reserved as by ENQUEUE_UNIQUE in lifecycle/unique_keys.py. What waits for a tenant is counted as by
# COUNT_WAITING in lifecycle/gate_limits.py. Characters are named by their numbers,
# because what [[:cntrl:]] and \s match depends on the locale of the database.
CREATE = r"""
CREATE FUNCTION schema_of_jobs.django_jobs_enqueue(
    job_type text,
    payload jsonb DEFAULT '{}',
    queue text DEFAULT NULL,
    priority integer DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    tenant text DEFAULT NULL,
    headers jsonb DEFAULT '{}',
    unique_for interval DEFAULT NULL,
    tags text[] DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    declared jsonb;
    line record;
    now timestamptz := statement_timestamp();
    due timestamptz;
    gates text;
    keys text[];
    held bigint;
    most integer;
    reserved bigint;
    job bigint;
    before_tenant text := '^\["[^"]*",\[[^]]*\],';
    dropping text;
    too_deep jsonpath := 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")';
    ids regclass := pg_get_serial_sequence($table$schema_of_jobs.django_jobs_job$table$, 'id');
BEGIN
    SELECT defaults.options INTO declared FROM schema_of_jobs.django_jobs_jobtypedefaults AS defaults
    WHERE defaults.name = django_jobs_enqueue.job_type;
    IF declared IS NULL THEN
        RAISE EXCEPTION 'unknown job type %', coalesce(quote_literal(job_type), 'NULL')
            USING ERRCODE = '22023', HINT = 'manage.py migrate writes the job types that SQL knows.';
    END IF;
    IF (declared ->> 'has_gates')::boolean THEN
        RAISE EXCEPTION '% has resources, a concurrency key or a tenant', job_type
            USING ERRCODE = '22023', HINT = 'Its gates are computed in Python: enqueue it there.';
    END IF;
    IF payload IS NULL OR jsonb_typeof(payload) <> 'object' THEN
        RAISE EXCEPTION '%: the payload is not an object of arguments', job_type
            USING ERRCODE = '22023';
    END IF;
    IF headers IS NULL OR jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION '%: headers are not an object', job_type USING ERRCODE = '22023';
    END IF;
    IF octet_length(payload::text) > (declared ->> 'max_bytes')::bigint THEN
        RAISE EXCEPTION '%: the payload is larger than % bytes', job_type, declared ->> 'max_bytes'
            USING ERRCODE = '22023';
    END IF;
    IF octet_length(headers::text) > (declared ->> 'max_bytes')::bigint THEN
        RAISE EXCEPTION '%: headers are larger than % bytes', job_type, declared ->> 'max_bytes'
            USING ERRCODE = '22023';
    END IF;
    IF jsonb_path_exists(payload, too_deep) OR jsonb_path_exists(headers, too_deep) THEN
        RAISE EXCEPTION '%: payload and headers are not nested deeper than 64 levels', job_type
            USING ERRCODE = '22023';
    END IF;
    keys := ARRAY(SELECT argument FROM jsonb_array_elements_text(declared -> 'needs') AS argument
                  WHERE NOT payload ? argument);
    IF keys <> '{}' THEN
        RAISE EXCEPTION '%: the payload lacks %', job_type, array_to_string(keys, ', ')
            USING ERRCODE = '22023';
    END IF;
    IF jsonb_typeof(declared -> 'takes') = 'array' THEN
        keys := ARRAY(SELECT argument FROM jsonb_object_keys(payload) AS argument
                      WHERE NOT (declared -> 'takes') ? argument);
        IF keys <> '{}' THEN
            RAISE EXCEPTION '% does not take %', job_type, array_to_string(keys, ', ')
                USING ERRCODE = '22023';
        END IF;
    END IF;
    IF priority NOT BETWEEN -100 AND 100 THEN
        RAISE EXCEPTION '%: priority is a whole number from -100 to 100, not %', job_type, priority
            USING ERRCODE = '22023';
    END IF;
    IF run_at IS NOT NULL AND delay IS NOT NULL THEN
        RAISE EXCEPTION '%: give run_at or delay, not both', job_type USING ERRCODE = '22023';
    END IF;
    due := coalesce(run_at, now + delay, now);
    IF delay < interval '0' OR due > now + interval '36600 days'
        OR due < now - interval '36600 days' THEN
        RAISE EXCEPTION '%: run_at is within 36600 days of now, and delay not negative', job_type
            USING ERRCODE = '22023';
    END IF;
    IF max_attempts < 1 THEN
        RAISE EXCEPTION '%: max_attempts is a whole number from 1 to 2147483647, not %', job_type,
            max_attempts USING ERRCODE = '22023';
    END IF;
    IF max_attempts > 1 AND (declared ->> 'at_most_once')::boolean THEN
        RAISE EXCEPTION '% is delivered at most once and never retried: max_attempts is 1, not %',
            job_type, max_attempts USING ERRCODE = '22023';
    END IF;
    IF length(idempotency_key) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION '%: an idempotency key is text of 1 to 200 characters', job_type
            USING ERRCODE = '22023';
    END IF;
    IF unique_for IS NOT NULL AND idempotency_key IS NULL THEN
        RAISE EXCEPTION '%: unique_for needs an idempotency key', job_type USING ERRCODE = '22023';
    END IF;
    IF unique_for <= interval '0' OR now + unique_for > now + interval '36600 days' THEN
        RAISE EXCEPTION '%: unique_for is positive, and at most 36600 days', job_type
            USING ERRCODE = '22023';
    END IF;
    IF length(tenant) NOT BETWEEN 1 AND 100 OR tenant ~ '[\u0001-\u001F\u007F-\u009F]' THEN
        RAISE EXCEPTION '%: tenant is text of 1 to 100 characters', job_type
            USING ERRCODE = '22023';
    END IF;
    tags := ARRAY(
        SELECT DISTINCT tag FROM (
            SELECT unnest(tags) UNION ALL
            SELECT jsonb_array_elements_text(coalesce(declared -> 'tags', '[]'))) AS given (tag)
        ORDER BY tag);
    IF cardinality(tags) > 20 THEN
        RAISE EXCEPTION '%: a job has at most 20 tags, not %', job_type, cardinality(tags)
            USING ERRCODE = '22023';
    END IF;
    IF EXISTS (SELECT 1 FROM unnest(tags) AS tag WHERE tag IS NULL
               OR length(tag) NOT BETWEEN 1 AND 100 OR tag ~ '[\u0001-\u001F\u007F-\u009F]'
               OR tag ~ '^[ \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]'
               OR tag ~ '[ \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]$') THEN
        RAISE EXCEPTION '%: a tag is text of 1 to 100 characters', job_type
            USING ERRCODE = '22023';
    END IF;

    queue := coalesce(queue, declared ->> 'queue');
    SELECT row.* INTO line FROM schema_of_jobs.django_jobs_queue AS row
    WHERE row.name = django_jobs_enqueue.queue;
    IF NOT FOUND THEN
        RAISE EXCEPTION '%: no queue is named %', job_type, quote_literal(queue)
            USING ERRCODE = '22023';
    END IF;
    IF idempotency_key IS NOT NULL AND (line.max_backlog IS NOT NULL OR tenant IS NOT NULL) THEN
        SELECT coalesce((
            SELECT holder.id FROM schema_of_jobs.django_jobs_job_live AS holder
            WHERE holder.queue = django_jobs_enqueue.queue
              AND holder.idempotency_key = django_jobs_enqueue.idempotency_key
              AND holder.status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
        ), (SELECT known.job_id FROM schema_of_jobs.django_jobs_uniquekey AS known
            WHERE unique_for IS NOT NULL AND known.queue = django_jobs_enqueue.queue
              AND known.key = django_jobs_enqueue.idempotency_key AND known.expires_at > now)) INTO job;
        IF job IS NOT NULL THEN
            RETURN job;  -- it needs no room
        END IF;
    END IF;
    IF line.max_backlog IS NOT NULL THEN
        SELECT (SELECT count(*) FROM (
            SELECT 1 FROM schema_of_jobs.django_jobs_job_live AS other
            WHERE other.queue = django_jobs_enqueue.queue AND other.status = 'ready'
            ORDER BY other.rank, other.id LIMIT line.max_backlog) AS counted
        ) + (SELECT count(*) FROM (
            SELECT 1 FROM schema_of_jobs.django_jobs_job_live AS other
            WHERE other.status = 'blocked' AND other.gates IS NOT NULL
              AND other.gates >= '["' || line.name || '",' AND other.gates < '["' || line.name || '"-'
            ORDER BY other.gates, other.rank, other.id LIMIT line.max_backlog) AS counted) INTO held;
        IF held >= line.max_backlog THEN
            RAISE EXCEPTION '%: queue % is full: its ready jobs, and those at their gates, have reached its max_backlog of %',
                job_type, quote_literal(queue), line.max_backlog USING ERRCODE = '53400';
        END IF;
    END IF;

    priority := coalesce(priority, (declared ->> 'priority')::integer);
    IF tenant IS NOT NULL THEN
        gates := format('[%s,[],%s,null,1,"wait"]', to_json(queue), to_json(tenant));
        SELECT known.max_waiting INTO most FROM schema_of_jobs.django_jobs_tenant AS known
        WHERE known.name = django_jobs_enqueue.tenant;
    END IF;
    IF most IS NOT NULL THEN
        WITH RECURSIVE head AS (
            (SELECT substring(other.gates FROM before_tenant) AS text,
                coalesce(substring(other.gates FROM before_tenant) || 'o', other.gates) AS past
             FROM schema_of_jobs.django_jobs_job_live AS other
             WHERE other.status = 'blocked' AND other.gates IS NOT NULL
             ORDER BY other.gates, other.rank, other.id LIMIT 1)
            UNION ALL
            SELECT next.* FROM head CROSS JOIN LATERAL (
                SELECT substring(other.gates FROM before_tenant) AS text,
                    coalesce(substring(other.gates FROM before_tenant) || 'o', other.gates) AS past
                FROM schema_of_jobs.django_jobs_job_live AS other
                WHERE other.status = 'blocked' AND other.gates IS NOT NULL
                  AND other.gates > head.past
                ORDER BY other.gates, other.rank, other.id LIMIT 1) AS next
        )
        SELECT count(*) INTO held FROM (
            SELECT 1 FROM head CROSS JOIN LATERAL (
                SELECT 1 FROM schema_of_jobs.django_jobs_job_live AS other
                WHERE other.status = 'blocked' AND other.gates IS NOT NULL
                  AND other.gates >= head.text || to_json(django_jobs_enqueue.tenant) || ','
                  AND other.gates < head.text || to_json(django_jobs_enqueue.tenant) || '-'
                ORDER BY other.gates, other.rank, other.id LIMIT most) AS one
            LIMIT most) AS counted;
        IF held >= most THEN
            RAISE EXCEPTION '%: tenant % is full: its max_waiting of % is reached', job_type,
                quote_literal(tenant), most USING ERRCODE = '53400';
        END IF;
    END IF;
    FOR attempt IN 1..5 LOOP
        IF unique_for IS NOT NULL THEN
            INSERT INTO schema_of_jobs.django_jobs_uniquekey AS known (
                queue, key, job_type, job_id, expires_at)
            SELECT queue, idempotency_key, job_type, nextval(ids), now + unique_for
            WHERE NOT EXISTS (
                SELECT 1 FROM schema_of_jobs.django_jobs_job_live AS holder
                WHERE holder.queue = django_jobs_enqueue.queue
                  AND holder.idempotency_key = django_jobs_enqueue.idempotency_key
                  AND holder.status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running'))
            ON CONFLICT (queue, key) DO UPDATE SET job_type = excluded.job_type,
                job_id = excluded.job_id, expires_at = excluded.expires_at
                WHERE known.expires_at <= now
            RETURNING known.job_id INTO reserved;
        END IF;
        INSERT INTO schema_of_jobs.django_jobs_job_live (
            id, queue, job_type, payload_version, priority, max_attempts, max_crashes, backoff, timeout,
            at_most_once, headers, tags, status, rank, available_at, expires_at, created_at, payload,
            idempotency_key, tenant, concurrency_key, resources, gates)
        SELECT
            coalesce(reserved, nextval(ids)), queue, job_type, (declared ->> 'version')::smallint, priority,
            coalesce(max_attempts, (declared ->> 'max_attempts')::integer, line.max_attempts, 5),
            (declared ->> 'max_crashes')::smallint,
            coalesce(nullif(declared -> 'backoff', 'null'), line.backoff),
            coalesce((declared ->> 'timeout')::float8, line.timeout),
            (declared ->> 'at_most_once')::boolean, headers, nullif(tags, '{}'),
            CASE WHEN due > now THEN 'scheduled' WHEN gates IS NULL THEN 'ready' ELSE 'blocked' END,
            date_part('epoch', due) - priority * line.priority_weight, due,
            now + make_interval(secs => (declared ->> 'max_age')::float8), now, payload,
            idempotency_key, tenant, NULL, NULL, gates
        WHERE unique_for IS NULL OR reserved IS NOT NULL
        ON CONFLICT (queue, idempotency_key)
            WHERE idempotency_key IS NOT NULL
              AND status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
            DO NOTHING
        RETURNING id INTO job;
        IF job IS NOT NULL THEN
            PERFORM pg_notify(
                'django_jobs', CASE WHEN gates IS NULL THEN '' ELSE ':blocked:' END || queue);
            RETURN job;
        END IF;
        DELETE FROM schema_of_jobs.django_jobs_uniquekey AS known WHERE known.job_id = reserved
            AND known.queue = django_jobs_enqueue.queue
            AND known.key = django_jobs_enqueue.idempotency_key;
        SELECT coalesce((
            SELECT holder.id FROM schema_of_jobs.django_jobs_job_live AS holder
            WHERE holder.queue = django_jobs_enqueue.queue
              AND holder.idempotency_key = django_jobs_enqueue.idempotency_key
              AND holder.status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
        ), (SELECT known.job_id FROM schema_of_jobs.django_jobs_uniquekey AS known
            WHERE unique_for IS NOT NULL AND known.queue = django_jobs_enqueue.queue
              AND known.key = django_jobs_enqueue.idempotency_key AND known.expires_at > now)) INTO job;
        IF job IS NOT NULL THEN
            RETURN job;
        END IF;
    END LOOP;
    SELECT format('a trigger (%s) of %s', string_agg(tgname, ', ' ORDER BY tgname), relname)
    INTO dropping FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    WHERE tgrelid IN ($table$schema_of_jobs.django_jobs_job_live$table$::regclass,
                      $table$schema_of_jobs.django_jobs_uniquekey$table$::regclass)
      AND tgtype & 7 = 7 AND tgenabled <> 'D'
    GROUP BY relname ORDER BY relname LIMIT 1;
    IF dropping IS NOT NULL THEN
        RAISE EXCEPTION '%: % dropped 1 of the new rows: it returned NULL before INSERT', job_type,
            dropping USING ERRCODE = '09000';
    END IF;
    RAISE EXCEPTION '%: the key % kept changing hands; try again', job_type, idempotency_key
        USING ERRCODE = '40001';
END
$function$
"""
REVOKE = "REVOKE ALL ON FUNCTION schema_of_jobs.django_jobs_enqueue FROM PUBLIC"
DROP = "DROP FUNCTION IF EXISTS schema_of_jobs.django_jobs_enqueue"


def create(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the function in the schema of the tables. Does nothing on another database."""
    _execute(schema_editor, CREATE, REVOKE)


def drop(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Remove the function."""
    _execute(schema_editor, DROP)


def _execute(schema_editor: BaseDatabaseSchemaEditor, *statements: str) -> None:
    connection = schema_editor.connection
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT quote_ident(current_schema())")
        (schema,) = cursor.fetchone()
    for statement in statements:
        schema_editor.execute(statement.replace("schema_of_jobs", schema), None)
