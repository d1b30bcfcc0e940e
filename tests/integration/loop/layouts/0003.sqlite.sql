BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE approvals (
	run_id TEXT NOT NULL, 
	cycle INTEGER NOT NULL, 
	gate TEXT NOT NULL, 
	status TEXT DEFAULT 'pending' NOT NULL, 
	reason TEXT, 
	"by" TEXT, 
	requested_at FLOAT NOT NULL, 
	decided_at FLOAT, 
	deadline FLOAT, 
	CONSTRAINT pk_approvals PRIMARY KEY (run_id, cycle, gate), 
	CONSTRAINT ck_approvals_status CHECK (status IN ('pending', 'approved', 'rejected')), 
	CONSTRAINT fk_approvals_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "approvals" VALUES('crossing-1',1,'promote','pending',NULL,NULL,1.79592174944099473949e+09,NULL,NULL);
CREATE TABLE checkpoints (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	run_id TEXT NOT NULL, 
	cycle_idx INTEGER NOT NULL, 
	policy_type TEXT NOT NULL, 
	path TEXT NOT NULL, 
	blessed INTEGER DEFAULT '0' NOT NULL, 
	eval_json TEXT, 
	sha256 TEXT, 
	CONSTRAINT ck_checkpoints_blessed CHECK (blessed IN (0, 1)), 
	CONSTRAINT fk_checkpoints_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "checkpoints" VALUES(1,'crossing-1',0,'bc','cycle_0/train/policy',1,'{"success_rate": 0.6}',NULL);
CREATE TABLE cycles (
	run_id TEXT NOT NULL, 
	idx INTEGER NOT NULL, 
	stage TEXT NOT NULL, 
	decision TEXT, 
	started_at FLOAT NOT NULL, 
	finished_at FLOAT, 
	rung TEXT, 
	dataset_json TEXT, 
	proposal_json TEXT, 
	CONSTRAINT pk_cycles PRIMARY KEY (run_id, idx), 
	CONSTRAINT fk_cycles_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "cycles" VALUES('crossing-1',0,'done','promote',1.79592174940100312227e+09,1.79592174940498614313e+09,'bc',NULL,NULL);
INSERT INTO "cycles" VALUES('crossing-1',1,'train',NULL,1.79592174940599203112e+09,NULL,'bc',NULL,NULL);
CREATE TABLE episodes (
	run_id TEXT NOT NULL, 
	cycle INTEGER NOT NULL, 
	subject TEXT NOT NULL, 
	look INTEGER NOT NULL, 
	idx INTEGER NOT NULL, 
	task TEXT NOT NULL, 
	seed BIGINT NOT NULL, 
	success INTEGER NOT NULL, 
	score FLOAT, 
	CONSTRAINT pk_episodes PRIMARY KEY (run_id, cycle, subject, look, idx), 
	CONSTRAINT fk_episodes_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "episodes" VALUES('crossing-1',0,'candidate',0,0,'t',0,1,NULL);
INSERT INTO "episodes" VALUES('crossing-1',0,'candidate',0,1,'t',1,1,NULL);
INSERT INTO "episodes" VALUES('crossing-1',0,'candidate',0,2,'t',2,1,NULL);
INSERT INTO "episodes" VALUES('crossing-1',0,'candidate',0,3,'t',3,1,NULL);
INSERT INTO "episodes" VALUES('crossing-1',0,'candidate',0,4,'t',4,1,NULL);
INSERT INTO "episodes" VALUES('crossing-1',0,'candidate',0,5,'t',5,1,NULL);
INSERT INTO "episodes" VALUES('crossing-1',0,'candidate',0,6,'t',6,0,NULL);
INSERT INTO "episodes" VALUES('crossing-1',0,'candidate',0,7,'t',7,0,NULL);
INSERT INTO "episodes" VALUES('crossing-1',0,'candidate',0,8,'t',8,0,NULL);
INSERT INTO "episodes" VALUES('crossing-1',0,'candidate',0,9,'t',9,0,NULL);
CREATE TABLE events (
	run_id TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	step_key TEXT NOT NULL, 
	ordinal INTEGER NOT NULL, 
	ts FLOAT NOT NULL, 
	mono FLOAT NOT NULL, 
	stage TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	cycle INTEGER, 
	payload TEXT NOT NULL, 
	published INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (run_id, seq), 
	CONSTRAINT fk_events_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT uq_events_run_id_step_key_ordinal UNIQUE (run_id, step_key, ordinal)
);
INSERT INTO "events" VALUES('crossing-1',1,'0/decide',0,1.0,1.0,'decide','decision',0,'{"decision": "promote", "success_rate": 0.6, "baseline": null, "reason": "The first candidate reaches min_promote 0.050: 0.600 in 10 episodes."}',0);
INSERT INTO "events" VALUES('crossing-1',2,'0/knowledge',1,1.0,1.0,'knowledge','knowledge_updated',0,'{"pages": ["pages/policies/bc.md", "pages/tasks/crossing.md"]}',0);
CREATE TABLE jobs (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	run_id TEXT NOT NULL, 
	cycle INTEGER NOT NULL, 
	stage TEXT NOT NULL, 
	attempt INTEGER DEFAULT '0' NOT NULL, 
	cmd TEXT NOT NULL, 
	pid INTEGER, 
	pid_start_time FLOAT, 
	status TEXT DEFAULT 'pending' NOT NULL, 
	started FLOAT, 
	heartbeat FLOAT, 
	finished FLOAT, 
	exit INTEGER, 
	duration_s FLOAT DEFAULT '0' NOT NULL, 
	attempt_s FLOAT DEFAULT '0' NOT NULL, 
	interruptions INTEGER DEFAULT '0' NOT NULL, 
	device TEXT NOT NULL, 
	result_path TEXT, 
	result_sha256 TEXT, 
	CONSTRAINT ck_jobs_status CHECK (status IN ('pending', 'running', 'succeeded', 'failed', 'cancelled')), 
	CONSTRAINT fk_jobs_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT uq_jobs_run_id_cycle_stage UNIQUE (run_id, cycle, stage)
);
INSERT INTO "jobs" VALUES(1,'crossing-1',0,'train',1,'["cadenza", "job", "train"]',4242,1.0,'succeeded',1.79592174941399836543e+09,1.79592174941399836543e+09,1.79592174941999316219e+09,0,100.0,0.0,0,'cpu',NULL,NULL);
INSERT INTO "jobs" VALUES(2,'crossing-1',0,'eval_candidate_0',1,'["cadenza", "job", "eval_candidate_0"]',4242,1.0,'succeeded',1.7959217494230105877e+09,1.7959217494230105877e+09,1.7959217494279994965e+09,0,26.0,0.0,0,'cpu',NULL,NULL);
INSERT INTO "jobs" VALUES(3,'crossing-1',1,'train',1,'["cadenza", "job", "train"]',4243,1.0,'running',1.79592174943101692201e+09,1.79592174943399429318e+09,NULL,NULL,0.0,30.0,0,'cpu',NULL,NULL);
CREATE TABLE llm_replies (
	run_id TEXT NOT NULL, 
	cycle INTEGER NOT NULL, 
	purpose TEXT NOT NULL, 
	ordinal INTEGER NOT NULL, 
	provider TEXT NOT NULL, 
	model TEXT NOT NULL, 
	prompt_sha256 TEXT NOT NULL, 
	response_sha256 TEXT NOT NULL, 
	text TEXT NOT NULL, 
	tokens_in INTEGER, 
	tokens_out INTEGER, 
	cost_usd FLOAT, 
	error TEXT, 
	CONSTRAINT pk_llm_replies PRIMARY KEY (run_id, cycle, purpose, ordinal), 
	CONSTRAINT fk_llm_replies_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "llm_replies" VALUES('crossing-1',0,'propose',0,'openai','m','p','44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a','"{}"',NULL,NULL,0.25,NULL);
CREATE TABLE runs (
	id TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	status TEXT DEFAULT 'running' NOT NULL, 
	stop_reason TEXT, 
	config_json TEXT NOT NULL, 
	config_sha256 TEXT NOT NULL, 
	constitution_sha256 TEXT, 
	capabilities_json TEXT DEFAULT '{}' NOT NULL, 
	state_json TEXT NOT NULL, 
	state_version INTEGER DEFAULT '0' NOT NULL, 
	lease_owner TEXT, 
	lease_epoch INTEGER DEFAULT '0' NOT NULL, 
	lease_expires_at FLOAT, 
	stop_requested_at FLOAT, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT ck_runs_status CHECK (status IN ('running', 'pending_approval', 'stopped', 'finished', 'failed'))
);
INSERT INTO "runs" VALUES('crossing-1',1.79592174938901376728e+09,'running',NULL,'{"run_name": "crossing", "seed_dataset": "local/crossing", "budgets": {"max_cycles": 4, "max_gpu_hours": 0.5}}','9dc3c9520719b9861e5f7bd6b1d9ec640e332967a4c1f5107d6a0398749d1d82',NULL,'{}','{"run_id":"crossing-1","cycle":0,"step":"propose","rung":0,"rung_cycles":0,"blessed":null,"references":[],"provisional":null,"baseline":null,"history":[],"mix":null,"unmerged":[],"last_report":null,"decisions":[],"spent":0.0,"failed":0,"deviation":null,"current":{"proposal":null,"dataset":null,"candidate":null,"adapted":null,"comparison":null,"look":0,"candidate_report":null,"baseline_report":null,"decision":null,"reason":""},"stop_reason":null,"restarts":0}',0,NULL,2,NULL,NULL);
INSERT INTO "runs" VALUES('second',1.7959217494469895363e+09,'failed','TrainError: it''s over','{"run_name": "second", "store": "postgresql://ada:***@host/runs"}','50e34da9c7c73104000405cce7a105c1fe12404d63f846846c8fd59b24990ee8',NULL,'{}','{"run_id":"second","cycle":0,"step":"propose","rung":0,"rung_cycles":0,"blessed":null,"references":[],"provisional":null,"baseline":null,"history":[],"mix":null,"unmerged":[],"last_report":null,"decisions":[],"spent":0.0,"failed":0,"deviation":null,"current":{"proposal":null,"dataset":null,"candidate":null,"adapted":null,"comparison":null,"look":0,"candidate_report":null,"baseline_report":null,"decision":null,"reason":""},"stop_reason":null,"restarts":0}',0,NULL,0,NULL,NULL);
CREATE TABLE seed_ranges (
	run_id TEXT NOT NULL, 
	cycle INTEGER NOT NULL, 
	purpose TEXT NOT NULL, 
	look INTEGER NOT NULL, 
	start BIGINT NOT NULL, 
	count BIGINT NOT NULL, 
	CONSTRAINT pk_seed_ranges PRIMARY KEY (run_id, cycle, purpose, look), 
	CONSTRAINT fk_seed_ranges_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "seed_ranges" VALUES('crossing-1',0,'compare',0,7,3);
CREATE INDEX ix_runs_created_at ON runs (created_at);
CREATE UNIQUE INDEX ix_checkpoints_one_blessed ON checkpoints (run_id) WHERE blessed = 1;
CREATE INDEX ix_checkpoints_run_id ON checkpoints (run_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('checkpoints',1);
INSERT INTO "sqlite_sequence" VALUES('jobs',3);
COMMIT;
