"""Whatever is done to them, and wherever it is restarted, `SqlStore` and `MemoryStore` agree."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.errors import PenstockError
from penstock.schema import Lsn, TableId
from penstock.states import (
    MANUAL,
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    SyncDone,
    VisibleXids,
)
from penstock.stores import (
    DestinationTableMetadata,
    MemoryStore,
    MetadataStatus,
    SqlStore,
    Worker,
    WorkerKind,
)
from penstock.testing.store_contract.foundation import load_everything, table_schema

# Few tables and few positions, so that operations meet; positions around the
# places where a wrong text or sign order would show.
TABLES = [TableId(1), TableId(2), TableId(2**32 - 1)]
POSITIONS = [0, 9, 10, 15, 16, 2**31, 2**32 - 1, 2**32, 2**36, 2**63, 2**64 - 1]
PIPELINES = ["shop", "crm"]

tables = st.sampled_from(TABLES)
positions = st.sampled_from(POSITIONS).map(Lsn)
workers = st.builds(Worker, st.sampled_from(WorkerKind), tables)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)
plain_states = st.one_of(
    st.just(Init()),
    st.just(DataSync()),
    st.builds(
        FinishedCopy, texts, st.builds(VisibleXids, st.just(3), st.integers(3, 2**40)), positions
    ),
    st.builds(SyncDone, texts, positions),
    st.builds(Ready, texts),
)
states = plain_states | st.builds(
    Errored, texts, texts, st.just(MANUAL), plain_states, st.integers(1, 9)
)
metadata = st.builds(
    DestinationTableMetadata,
    texts,
    positions,
    st.sampled_from(MetadataStatus),
    st.lists(st.booleans(), max_size=3).map(tuple),
)


class Stores(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-store-"))
        self.model = MemoryStore()
        self.pipeline_id = PIPELINES[0]
        self.model.open(self.pipeline_id)
        self.store = self.fresh()

    def fresh(self) -> SqlStore:
        store = SqlStore(f"sqlite:///{self.directory}/store.db")
        store.open(self.pipeline_id)
        return store

    def both(self, call: str, *arguments: object) -> None:
        outcomes = []
        for store in (self.model, self.store):
            try:
                outcomes.append(("returned", getattr(store, call)(*arguments)))
            except PenstockError as error:
                outcomes.append(("raised", (error.kind, error.message)))
        assert outcomes[0] == outcomes[1]

    @rule(updates=st.dictionaries(tables, states, max_size=3))
    def update_states(self, updates: dict) -> None:
        self.both("update_table_states", updates)

    @rule(table_id=tables)
    def roll_back(self, table_id: TableId) -> None:
        self.both("rollback_table_state", table_id)

    @rule(worker=workers, lsn=positions)
    def move(self, worker: Worker, lsn: Lsn) -> None:
        self.both("upsert_replication_progress", worker, lsn)

    @rule(worker=workers)
    def forget_progress(self, worker: Worker) -> None:
        self.both("delete_replication_progress", worker)

    @rule(table_id=tables, version=positions)
    def store_schema(self, table_id: TableId, version: Lsn) -> None:
        self.both("store_table_schema", table_schema(table_id, version))

    @rule(table_id=tables, position=positions)
    def look_up_schema(self, table_id: TableId, position: Lsn) -> None:
        self.both("get_table_schema", table_id, position)

    @rule(retentions=st.dictionaries(tables, positions, max_size=3))
    def prune(self, retentions: dict) -> None:
        self.both("prune_table_schemas", retentions)

    @rule(table_id=tables, metadata=metadata)
    def store_metadata(self, table_id: TableId, metadata: DestinationTableMetadata) -> None:
        self.both("store_destination_table_metadata", table_id, metadata)

    @rule(table_id=tables)
    def prepare_copy(self, table_id: TableId) -> None:
        self.both("prepare_table_state_for_copy", table_id)

    @rule()
    def reset(self) -> None:
        self.both("reset_table_states_for_resync")

    @rule(table_id=tables)
    def delete(self, table_id: TableId) -> None:
        self.both("delete_table_state", table_id)

    @rule()
    def load(self) -> None:
        load_everything(self.store)

    @rule(pipeline_id=st.sampled_from(PIPELINES))
    def restart(self, pipeline_id: str) -> None:
        self.pipeline_id = pipeline_id
        self.model.close()
        self.model.open(pipeline_id)
        self.store.close()
        self.store = self.fresh()

    @invariant()
    def they_agree(self) -> None:
        self.both("get_table_states")
        self.both("get_table_schemas")
        for table_id in TABLES:
            self.both("get_applied_destination_table_metadata", table_id)
            self.both("get_destination_table_metadata", table_id)
            for kind in WorkerKind:
                self.both("get_replication_progress", Worker(kind, table_id))

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=30, stateful_step_count=30)
