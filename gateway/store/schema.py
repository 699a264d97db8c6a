"""Schema: the tables of the state file, and the migrations that bring an older file to them.

Each migration takes the file from one version to the next, in one transaction. Migrations are only ever appended:
existing files were made by the earlier ones.
"""

APPLICATION_ID = 0x464C5244  # "FLRD", in the header of the file (https://sqlite.org/fileformat.html#application_id)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # `arrival` counts arrivals at this file, so that a document merged late still appears in `news`.
        """CREATE TABLE documents (
            kind TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, arrival INTEGER NOT NULL, body TEXT,
            PRIMARY KEY (kind, name)) WITHOUT ROWID""",
        "CREATE UNIQUE INDEX documents_by_arrival ON documents (arrival)",
        "CREATE INDEX deleted_documents ON documents (version) WHERE body IS NULL",
        """CREATE TABLE audit (
            revision INTEGER PRIMARY KEY, at_s REAL NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,
            kind TEXT NOT NULL, name TEXT NOT NULL, before TEXT, after TEXT)""",
        "CREATE INDEX audit_by_name ON audit (kind, name, revision)",
        """CREATE TABLE usage (
            day TEXT NOT NULL, tenant TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, writer TEXT NOT NULL,
            requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
            output_tokens INTEGER NOT NULL,
            PRIMARY KEY (day, tenant, key, model, writer)) WITHOUT ROWID""",
        "CREATE TABLE learnt (name TEXT PRIMARY KEY, at_s REAL NOT NULL, body BLOB NOT NULL) WITHOUT ROWID",
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO counters (name, value) VALUES ('revision', 0), ('arrival', 0)",
    ),
    ("ALTER TABLE audit ADD COLUMN replica TEXT NOT NULL DEFAULT ''",),
    ("CREATE INDEX audit_by_actor ON audit (actor, revision)",),
)
SCHEMA_VERSION = len(MIGRATIONS)
