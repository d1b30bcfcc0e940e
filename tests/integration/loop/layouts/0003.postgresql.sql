CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.approvals (
    run_id text NOT NULL,
    cycle integer NOT NULL,
    gate text NOT NULL,
    status text DEFAULT 'pending'::text NOT NULL,
    reason text,
    by text,
    requested_at double precision NOT NULL,
    decided_at double precision,
    deadline double precision,
    CONSTRAINT ck_approvals_status CHECK ((status = ANY (ARRAY['pending'::text, 'approved'::text, 'rejected'::text])))
);
CREATE TABLE public.checkpoints (
    id integer NOT NULL,
    run_id text NOT NULL,
    cycle_idx integer NOT NULL,
    policy_type text NOT NULL,
    path text NOT NULL,
    blessed integer DEFAULT 0 NOT NULL,
    eval_json text,
    sha256 text,
    CONSTRAINT ck_checkpoints_blessed CHECK ((blessed = ANY (ARRAY[0, 1])))
);
CREATE SEQUENCE public.checkpoints_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.checkpoints_id_seq OWNED BY public.checkpoints.id;
CREATE TABLE public.cycles (
    run_id text NOT NULL,
    idx integer NOT NULL,
    stage text NOT NULL,
    decision text,
    started_at double precision NOT NULL,
    finished_at double precision,
    rung text,
    dataset_json text,
    proposal_json text
);
CREATE TABLE public.episodes (
    run_id text NOT NULL,
    cycle integer NOT NULL,
    subject text NOT NULL,
    look integer NOT NULL,
    idx integer NOT NULL,
    task text NOT NULL,
    seed bigint NOT NULL,
    success integer NOT NULL,
    score double precision
);
CREATE TABLE public.events (
    run_id text NOT NULL,
    seq bigint NOT NULL,
    step_key text NOT NULL,
    ordinal integer NOT NULL,
    ts double precision NOT NULL,
    mono double precision NOT NULL,
    stage text NOT NULL,
    kind text NOT NULL,
    cycle integer,
    payload text NOT NULL,
    published integer DEFAULT 0 NOT NULL
);
CREATE TABLE public.jobs (
    id integer NOT NULL,
    run_id text NOT NULL,
    cycle integer NOT NULL,
    stage text NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    cmd text NOT NULL,
    pid integer,
    pid_start_time double precision,
    status text DEFAULT 'pending'::text NOT NULL,
    started double precision,
    heartbeat double precision,
    finished double precision,
    exit integer,
    duration_s double precision DEFAULT '0'::double precision NOT NULL,
    attempt_s double precision DEFAULT '0'::double precision NOT NULL,
    interruptions integer DEFAULT 0 NOT NULL,
    device text NOT NULL,
    result_path text,
    result_sha256 text,
    CONSTRAINT ck_jobs_status CHECK ((status = ANY (ARRAY['pending'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text])))
);
CREATE SEQUENCE public.jobs_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.jobs_id_seq OWNED BY public.jobs.id;
CREATE TABLE public.llm_replies (
    run_id text NOT NULL,
    cycle integer NOT NULL,
    purpose text NOT NULL,
    ordinal integer NOT NULL,
    provider text NOT NULL,
    model text NOT NULL,
    prompt_sha256 text NOT NULL,
    response_sha256 text NOT NULL,
    text text NOT NULL,
    tokens_in integer,
    tokens_out integer,
    cost_usd double precision,
    error text
);
CREATE TABLE public.runs (
    id text NOT NULL,
    created_at double precision NOT NULL,
    status text DEFAULT 'running'::text NOT NULL,
    stop_reason text,
    config_json text NOT NULL,
    config_sha256 text NOT NULL,
    constitution_sha256 text,
    capabilities_json text DEFAULT '{}'::text NOT NULL,
    state_json text NOT NULL,
    state_version integer DEFAULT 0 NOT NULL,
    lease_owner text,
    lease_epoch integer DEFAULT 0 NOT NULL,
    lease_expires_at double precision,
    stop_requested_at double precision,
    CONSTRAINT ck_runs_status CHECK ((status = ANY (ARRAY['running'::text, 'pending_approval'::text, 'stopped'::text, 'finished'::text, 'failed'::text])))
);
CREATE TABLE public.seed_ranges (
    run_id text NOT NULL,
    cycle integer NOT NULL,
    purpose text NOT NULL,
    look integer NOT NULL,
    start bigint NOT NULL,
    count bigint NOT NULL
);
ALTER TABLE ONLY public.checkpoints ALTER COLUMN id SET DEFAULT nextval('public.checkpoints_id_seq'::regclass);
ALTER TABLE ONLY public.jobs ALTER COLUMN id SET DEFAULT nextval('public.jobs_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0003');
INSERT INTO public.approvals VALUES ('crossing-1', 1, 'promote', 'pending', NULL, NULL, 1795921750.117325, NULL, NULL);
INSERT INTO public.checkpoints VALUES (1, 'crossing-1', 0, 'bc', 'cycle_0/train/policy', 1, '{"success_rate": 0.6}', NULL);
INSERT INTO public.cycles VALUES ('crossing-1', 0, 'done', 'promote', 1795921750.060187, 1795921750.068303, 'bc', NULL, NULL);
INSERT INTO public.cycles VALUES ('crossing-1', 1, 'train', NULL, 1795921750.069845, NULL, 'bc', NULL, NULL);
INSERT INTO public.episodes VALUES ('crossing-1', 0, 'candidate', 0, 0, 't', 0, 1, NULL);
INSERT INTO public.episodes VALUES ('crossing-1', 0, 'candidate', 0, 1, 't', 1, 1, NULL);
INSERT INTO public.episodes VALUES ('crossing-1', 0, 'candidate', 0, 2, 't', 2, 1, NULL);
INSERT INTO public.episodes VALUES ('crossing-1', 0, 'candidate', 0, 3, 't', 3, 1, NULL);
INSERT INTO public.episodes VALUES ('crossing-1', 0, 'candidate', 0, 4, 't', 4, 1, NULL);
INSERT INTO public.episodes VALUES ('crossing-1', 0, 'candidate', 0, 5, 't', 5, 1, NULL);
INSERT INTO public.episodes VALUES ('crossing-1', 0, 'candidate', 0, 6, 't', 6, 0, NULL);
INSERT INTO public.episodes VALUES ('crossing-1', 0, 'candidate', 0, 7, 't', 7, 0, NULL);
INSERT INTO public.episodes VALUES ('crossing-1', 0, 'candidate', 0, 8, 't', 8, 0, NULL);
INSERT INTO public.episodes VALUES ('crossing-1', 0, 'candidate', 0, 9, 't', 9, 0, NULL);
INSERT INTO public.events VALUES ('crossing-1', 1, '0/decide', 0, 1, 1, 'decide', 'decision', 0, '{"decision": "promote", "success_rate": 0.6, "baseline": null, "reason": "The first candidate reaches min_promote 0.050: 0.600 in 10 episodes."}', 0);
INSERT INTO public.events VALUES ('crossing-1', 2, '0/knowledge', 1, 1, 1, 'knowledge', 'knowledge_updated', 0, '{"pages": ["pages/policies/bc.md", "pages/tasks/crossing.md"]}', 0);
INSERT INTO public.jobs VALUES (1, 'crossing-1', 0, 'train', 1, '["cadenza", "job", "train"]', 4242, 1, 'succeeded', 1795921750.081162, 1795921750.081162, 1795921750.089169, 0, 100, 0, 0, 'cpu', NULL, NULL);
INSERT INTO public.jobs VALUES (2, 'crossing-1', 0, 'eval_candidate_0', 1, '["cadenza", "job", "eval_candidate_0"]', 4242, 1, 'succeeded', 1795921750.093689, 1795921750.093689, 1795921750.099361, 0, 26, 0, 0, 'cpu', NULL, NULL);
INSERT INTO public.jobs VALUES (3, 'crossing-1', 1, 'train', 1, '["cadenza", "job", "train"]', 4243, 1, 'running', 1795921750.103236, 1795921750.106676, NULL, NULL, 0, 30, 0, 'cpu', NULL, NULL);
INSERT INTO public.llm_replies VALUES ('crossing-1', 0, 'propose', 0, 'openai', 'm', 'p', '44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a', '"{}"', NULL, NULL, 0.25, NULL);
INSERT INTO public.runs VALUES ('second', 1795921750.123795, 'failed', 'TrainError: it''s over', '{"run_name": "second", "store": "postgresql://ada:***@host/runs"}', '50e34da9c7c73104000405cce7a105c1fe12404d63f846846c8fd59b24990ee8', NULL, '{}', '{"run_id":"second","cycle":0,"step":"propose","rung":0,"rung_cycles":0,"blessed":null,"references":[],"provisional":null,"baseline":null,"history":[],"mix":null,"unmerged":[],"last_report":null,"decisions":[],"spent":0.0,"failed":0,"deviation":null,"current":{"proposal":null,"dataset":null,"candidate":null,"adapted":null,"comparison":null,"look":0,"candidate_report":null,"baseline_report":null,"decision":null,"reason":""},"stop_reason":null,"restarts":0}', 0, NULL, 0, NULL, NULL);
INSERT INTO public.runs VALUES ('crossing-1', 1795921750.052887, 'running', NULL, '{"run_name": "crossing", "seed_dataset": "local/crossing", "budgets": {"max_cycles": 4, "max_gpu_hours": 0.5}}', '9dc3c9520719b9861e5f7bd6b1d9ec640e332967a4c1f5107d6a0398749d1d82', NULL, '{}', '{"run_id":"crossing-1","cycle":0,"step":"propose","rung":0,"rung_cycles":0,"blessed":null,"references":[],"provisional":null,"baseline":null,"history":[],"mix":null,"unmerged":[],"last_report":null,"decisions":[],"spent":0.0,"failed":0,"deviation":null,"current":{"proposal":null,"dataset":null,"candidate":null,"adapted":null,"comparison":null,"look":0,"candidate_report":null,"baseline_report":null,"decision":null,"reason":""},"stop_reason":null,"restarts":0}', 0, NULL, 2, NULL, NULL);
INSERT INTO public.seed_ranges VALUES ('crossing-1', 0, 'compare', 0, 7, 3);
SELECT pg_catalog.setval('public.checkpoints_id_seq', 1, true);
SELECT pg_catalog.setval('public.jobs_id_seq', 3, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.approvals
    ADD CONSTRAINT pk_approvals PRIMARY KEY (run_id, cycle, gate);
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT pk_checkpoints PRIMARY KEY (id);
ALTER TABLE ONLY public.cycles
    ADD CONSTRAINT pk_cycles PRIMARY KEY (run_id, idx);
ALTER TABLE ONLY public.episodes
    ADD CONSTRAINT pk_episodes PRIMARY KEY (run_id, cycle, subject, look, idx);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT pk_events PRIMARY KEY (run_id, seq);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (id);
ALTER TABLE ONLY public.llm_replies
    ADD CONSTRAINT pk_llm_replies PRIMARY KEY (run_id, cycle, purpose, ordinal);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT pk_runs PRIMARY KEY (id);
ALTER TABLE ONLY public.seed_ranges
    ADD CONSTRAINT pk_seed_ranges PRIMARY KEY (run_id, cycle, purpose, look);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT uq_events_run_id_step_key_ordinal UNIQUE (run_id, step_key, ordinal);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT uq_jobs_run_id_cycle_stage UNIQUE (run_id, cycle, stage);
CREATE UNIQUE INDEX ix_checkpoints_one_blessed ON public.checkpoints USING btree (run_id) WHERE (blessed = 1);
CREATE INDEX ix_checkpoints_run_id ON public.checkpoints USING btree (run_id);
CREATE INDEX ix_runs_created_at ON public.runs USING btree (created_at);
ALTER TABLE ONLY public.approvals
    ADD CONSTRAINT fk_approvals_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT fk_checkpoints_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.cycles
    ADD CONSTRAINT fk_cycles_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.episodes
    ADD CONSTRAINT fk_episodes_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT fk_events_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.llm_replies
    ADD CONSTRAINT fk_llm_replies_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.seed_ranges
    ADD CONSTRAINT fk_seed_ranges_run_id_runs FOREIGN KEY (run_id) REFERENCES public.runs(id);
