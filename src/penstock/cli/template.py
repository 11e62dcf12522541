"""The configuration that `penstock init` writes: every setting, with its default and why.

What has no default is set; everything else is there as a comment. A test keeps
the page complete and true to `config`.
"""

from __future__ import annotations

from pathlib import Path

import typer

from penstock.errors import ErrorKind, PenstockError

TEMPLATE = """\
# Penstock: one pipeline, from a Postgres publication into Delta tables.
#
#   penstock doctor penstock.yaml    what is missing at the source, and the statement that adds it
#   penstock run penstock.yaml       copy what is there, then stream every change
#
# ${...} is replaced by the environment variable that is named between the braces,
# so that no secret need be in this file. Relative paths start at the directory that
# penstock is run in. Lines that are commented out show defaults.

# Names the pipeline: its slot is penstock_<id>. Lower-case letters, digits, _; a number is fine.
id: shop

# What is replicated. On the source:
#   CREATE PUBLICATION shop_pub FOR TABLE customers, orders;   -- or FOR ALL TABLES
publication_name: shop_pub

# How to reach Postgres: libpq's own parameters. What is not given comes from
# where psql would take it (PGHOST, ~/.pgpass, the service file). Or a URI alone, as in
# `pg_connection: postgresql://penstock@localhost:5432/shop`.
pg_connection:
  host: localhost
  port: 5432
  dbname: shop
  user: penstock
  # password: ${...}                                     # see above
  # passfile: ~/.pgpass
  # service: shop
  # uri: postgresql://penstock@localhost:5432/shop      # what stands beside it counts for more
  # hostaddr: 10.0.0.7
  # sslmode: verify-full
  # sslrootcert: /etc/ssl/ca.pem
  # sslcert: /etc/ssl/penstock.pem
  # sslkey: /etc/ssl/penstock.key
  # connect_timeout: 10                                  # seconds
  # keepalives: 1
  # keepalives_idle: 30
  # keepalives_interval: 10
  # keepalives_count: 3
  # tcp_user_timeout: 60000                              # milliseconds
  # options: -c work_mem=64MB
  # target_session_attrs: read-write                     # with host: a,b and port: 5432,5433
  # And whatever else libpq knows: load_balance_hosts, channel_binding, require_auth, requirepeer,
  # sslpassword, sslcertmode, sslcrl, sslcrldir, sslnegotiation, sslcompression, sslsni,
  # sslkeylogfile, ssl_min_protocol_version, ssl_max_protocol_version, min_protocol_version,
  # max_protocol_version, gssencmode, gsslib, gssdelegation, krbsrvname, scram_client_key,
  # scram_server_key, oauth_issuer, oauth_client_id, oauth_client_secret, oauth_scope. (In place of
  # application_name, fallback_application_name, client_encoding and replication penstock has its
  # own.)

# Where the tables go: Delta tables at <root>/<schema>/<table>.
destination:
  type: delta                # or memory, null, or package.module:Class of your own
  root: ./lake
  # mode: mirror             # equal to the source; or history: every change appended

# What must survive beside the journal: table states, schemas, cursors.
store:
  type: sql                  # or memory (copies again at each start), or package.module:Class
  url: sqlite:///penstock.db # or postgresql://user:${...}@host/dbname

# The durable log of changes between Postgres and Spark.
journal:
  location: ./penstock-journal
  # max_bytes: 17179869184       # 16 GiB: receiving pauses here, resumes at 80 %
  # max_table_bytes: 4294967296  # 4 GiB: what one table that is errored may hold (if you give
                                 # max_bytes alone, a quarter of that, where it is less)
  # retention_hours: 0           # keep applied changes longer, for replay (up to 80 % of max_bytes)

# The Spark session. `config` is handed to Spark as it is.
# spark:
#   master: local[*]
#   config:
#     spark.driver.memory: 2g

# How long and how much to gather before writing.
# batch:
#   max_fill_ms: 1000
#   max_bytes: 67108864          # 64 MiB
#   memory_budget_ratio: 0.2     # share of the machine's memory

# Shares of the memory budget, and of the memory that a process and its control group may use,
# at which intake pauses and resumes. `memory_backpressure: null` turns these pauses off.
# memory_backpressure:
#   activate: 0.85
#   resume: 0.75
#   refresh_interval_ms: 100

# How many tables are copied, and applied, at once.
# max_table_sync_workers: 4
# max_copy_connections_per_table: 4
# max_apply_workers: 4

# Which tables are copied before they are streamed: all, none, or with
# {mode: only, tables: [public.orders]} or {mode: except, tables: [...]} some.
# table_sync_copy: all

# A table that fails becomes errored and is tried again, later each time.
# table_error_retry_delay_ms: 1000
# table_error_retry_max_delay_ms: 60000
# table_error_retry_max_attempts: 8

# What to do when a table is altered: follow, additive (only added columns), or freeze
# (set it aside). A mirror follows in place where it can (see `penstock setup`), else by a
# new copy, during which the old one can be read.
# schema_change_policy: follow

# What to do when Postgres has dropped the slot's WAL: error, or recreate (copies again).
# invalidated_slot_behavior: error

# Whether standbys keep a copy of the slot, so that the pipeline goes on with one that was
# promoted (Postgres 17 and later; set synchronized_standby_slots on the primary).
# failover: false

# A value that its Spark type cannot hold (infinity as a date): error stops that
# table, null writes NULL and counts it.
# on_unrepresentable: error

# Columns to carry as another type than the mapping says.
# column_types:
#   public.orders:
#     note: string

# How often the lag behind the source is measured.
# replication_lag_refresh_interval_ms: 1000
"""


def write_template(path: Path, *, stdout: bool, force: bool) -> None:
    """Write the page to `path`, or print it; an existing file stays unless `force` is given."""
    if stdout:
        typer.echo(TEMPLATE, nl=False)
        return
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise PenstockError(
            ErrorKind.CONFIG,
            f"{path} is there already",
            hint="name another file, or overwrite it with --force",
        ) from None
    except OSError as error:
        raise PenstockError(
            ErrorKind.CONFIG,
            f"cannot write {path}: {error.strerror or error}",
            hint="name a file in a directory that exists and can be written",
        ) from error
    typer.echo(f"wrote {path}; set pg_connection, then try: penstock doctor {path}")
