"""Several processes on one storage, and processes that die without warning."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import PenstockError
from penstock.schema import Lsn, TableId
from penstock.states import Ready
from penstock.stores import SqlStore, Worker

TABLE, TWIN = TableId(1), TableId(2)

# Opens the store together with its rivals, then moves the shared progress in
# random steps, adding a state to the shared history with each.
CLIMB = """
import random, sys
from penstock.schema import Lsn, TableId
from penstock.states import Ready
from penstock.stores import SqlStore, Worker

url, number, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = SqlStore(url)
print("started", flush=True)
sys.stdin.readline()
store.open("shop")
worker, before = Worker.apply(TableId(1)), Lsn(0)
positions = random.Random(number).sample(range(1, 10**12), rounds)
for position in positions:
    stored = store.upsert_replication_progress(worker, Lsn(position))
    assert stored >= Lsn(position) and stored >= before, (stored, position, before)
    before = stored
    store.update_table_state(TableId(1), Ready(f"{number}"))
store.close()
print(max(positions), flush=True)
"""

# Writes for ever, and says each thing after it was told that it is stored.
WRITE = """
import sys
from penstock.schema import Lsn, TableId
from penstock.states import Ready
from penstock.stores import SqlStore, Worker

store = SqlStore(sys.argv[1])
store.open("shop")
for number in range(int(sys.argv[2]), 10**9):
    store.update_table_states({TableId(1): Ready(f"{number}"), TableId(2): Ready(f"{number}")})
    print("state", number, flush=True)
    store.upsert_replication_progress(Worker.apply(TableId(1)), Lsn(number))
    print("progress", number, flush=True)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_open_and_write_at_once_never_move_progress_back(url: str) -> None:
    number_of_processes, rounds = 3, 30
    climbers = [start(CLIMB, url, number, rounds) for number in range(number_of_processes)]
    for climber in climbers:
        assert climber.stdout is not None
        assert climber.stdout.readline() == "started\n"
    with ThreadPoolExecutor() as executor:  # let go of all at once: the first must migrate
        outcomes = list(executor.map(lambda climber: climber.communicate("go\n"), climbers))
    assert [climber.returncode for climber in climbers] == [0] * number_of_processes

    store = SqlStore(url)
    store.open("shop")
    highest = max(int(output) for output, _ in outcomes)
    assert store.get_replication_progress(Worker.apply(TABLE)) == Lsn(highest)
    seen: Counter[object] = Counter([store.get_table_state(TABLE)])
    for _ in range(number_of_processes * rounds - 1):
        seen[store.rollback_table_state(TABLE)] += 1
    with pytest.raises(PenstockError, match="no earlier state"):
        store.rollback_table_state(TABLE)
    assert seen == {Ready(f"{number}"): rounds for number in range(number_of_processes)}
    store.close()


def test_what_a_killed_process_was_told_is_stored_and_nothing_is_half_done(url: str) -> None:
    chance = random.Random(url)
    told = {"state": 0, "progress": 0}
    for _ in range(5):
        writer = start(WRITE, url, told["state"] + 1)
        assert writer.stdout is not None
        for _ in range(chance.randint(1, 60)):
            note(told, writer.stdout.readline())
        writer.kill()
        for line in writer.stdout:
            note(told, line)
        writer.communicate()

        store = SqlStore(url)
        store.open("shop")
        state, twin = store.get_table_state(TABLE), store.get_table_state(TWIN)
        assert isinstance(state, Ready)
        assert state == twin
        assert told["state"] <= int(state.copy_id) <= told["state"] + 1
        progress = store.get_replication_progress(Worker.apply(TABLE)) or Lsn(0)
        assert told["progress"] <= progress.value <= int(state.copy_id)
        store.close()
        told = {"state": int(state.copy_id), "progress": progress.value}


def note(told: dict[str, int], line: str) -> None:
    """Remember what the writer said; it may have been killed in the middle of a line."""
    if line.endswith("\n"):
        what, number = line.split()
        told[what] = int(number)
