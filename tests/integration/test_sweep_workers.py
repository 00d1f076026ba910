"""Many workers of one study, killed and started together, on a journal file and on PostgreSQL."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cheap_trials import STEPS, base, cheap_sweep
from optuna.trial import FrozenTrial

from mupo_ray.errors import ConfigError, SweepError
from mupo_ray.files import read_jsonl
from mupo_ray.tune.study import Sweep, open_sweep

WORKER = Path(__file__).parents[1] / "cheap_trials.py"
LIMIT_S = 300


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Address of a PostgreSQL server of the test's own, in a socket's folder without a port."""
    pytest.importorskip("psycopg", reason='no driver: pip install "mupo_ray[postgres]"')
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    binary = shutil.which("initdb") or (found[-1] / "initdb" if found else None)
    if binary is None:
        pytest.skip("no PostgreSQL server: apt-get install postgresql")
    tools = Path(binary).resolve().parent
    # Not below pytest's folders, which are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="mupo_pg_"))
    user: dict[str, Any] = {}
    if os.getuid() == 0:
        # The server refuses to run as root.
        shutil.chown(folder, "nobody")
        user = {"user": "nobody", "cwd": folder}
    quiet: dict[str, Any] = {"check": True, "capture_output": True, "timeout": 120, **user}
    data = folder / "data"
    subprocess.run([tools / "initdb", "-D", data, "-U", "mupo", "-A", "trust", "-N"], **quiet)
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    start = [tools / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start"]
    # The server keeps what it inherits of standard output open.
    silent = {**quiet, "capture_output": False, "stdout": subprocess.DEVNULL}
    subprocess.run(start, **silent)
    try:
        yield f"postgresql+psycopg://mupo@/postgres?host={folder}"
    finally:
        subprocess.run([tools / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(folder)


@pytest.fixture(params=["journal", "postgres"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where the study is kept; each test has a study of its own in the one database."""
    name = f"s{tmp_path.name}"
    if request.param == "journal":
        return {"name": name}
    return {"name": name, "storage": request.getfixturevalue("postgres"), "heartbeat_s": 1}


def start(
    folder: Path, changes: Mapping[str, Any], step_s: float, *extra: str, count: int = 1
) -> subprocess.Popen[str]:
    arguments = [str(count), str(folder), json.dumps(changes), str(step_s), *extra]
    command = [sys.executable, str(WORKER), *arguments]
    env = os.environ | {"PYTHONPATH": str(WORKER.parent)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def ends(worker: subprocess.Popen[str]) -> str:
    out, err = worker.communicate(timeout=LIMIT_S)
    assert worker.returncode == 0, err
    return out


def opened(folder: Path, changes: Mapping[str, Any]) -> Sweep:
    return open_sweep(cheap_sweep(**changes), base(folder))


def states(sweep: Sweep) -> list[str]:
    return [trial.state.name for trial in sweep.trials]


def starts(sweep: Sweep, trial: FrozenTrial) -> list[dict[str, int]]:
    return read_jsonl(sweep.run_dir(trial) / "starts.jsonl")


@pytest.mark.timeout(2 * LIMIT_S)
def test_twenty_processes_make_one_study(tmp_path: Path, storage: dict[str, Any]) -> None:
    ends(start(tmp_path, storage, 0.0, "open", count=20))
    sweep = opened(tmp_path, storage)
    # The baseline was queued once.
    assert states(sweep) == ["WAITING"]
    assert sweep.worker == 20


@pytest.mark.timeout(2 * LIMIT_S)
def test_four_workers_train_every_trial_once(tmp_path: Path, storage: dict[str, Any]) -> None:
    changes = storage | {"trials": 24}
    ends(start(tmp_path, changes, 0.1, count=4))
    sweep = opened(tmp_path, changes)
    assert states(sweep) == ["COMPLETE"] * 24
    assert [t.number for t in sweep.trials] == list(range(24))
    for trial in sweep.trials:
        assert [s["from"] for s in starts(sweep, trial)] == [0]
        rows = read_jsonl(sweep.run_dir(trial) / "metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert len({starts(sweep, t)[0]["pid"] for t in sweep.trials}) == 4


@pytest.mark.timeout(2 * LIMIT_S)
def test_d09_a_killed_worker_leaves_no_trial_behind(
    tmp_path: Path, storage: dict[str, Any]
) -> None:
    changes = storage | {"trials": 4}
    worker = start(tmp_path, changes, 0.5)
    sweep = opened(tmp_path, changes)
    wait_for_step(sweep.folder / "trials" / "2", 2)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert states(sweep) == ["COMPLETE", "COMPLETE", "RUNNING"]
    before = [trial.value for trial in sweep.trials[:2]]

    began = time.monotonic()
    ends(start(tmp_path, changes, 0.5))
    assert time.monotonic() - began < 60
    assert states(sweep) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert [trial.value for trial in sweep.trials[:2]] == before
    dead, again = sweep.trials[2], sweep.trials[3 if has_run(sweep, 3, "2") else 4]
    assert again.params == dead.params
    assert sweep.run_dir(again).name == "2"
    begins = [s["from"] for s in starts(sweep, again)]
    assert begins[0] == 0
    assert begins[1] >= 3, "it goes on where it was"
    for trial in sweep.trials[:2]:
        assert len(starts(sweep, trial)) == 1
    runs = sorted(p.name for p in (sweep.folder / "trials").iterdir())
    assert len(runs) == 4


def has_run(sweep: Sweep, number: int, name: str) -> bool:
    return sweep.run_dir(sweep.trials[number]).name == name


def wait_for_step(run_dir: Path, step: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not any(r["step"] >= step for r in read_jsonl(run_dir / "metrics.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.timeout(2 * LIMIT_S)
def test_a_living_workers_trial_is_left_alone(tmp_path: Path, storage: dict[str, Any]) -> None:
    changes = storage | {"trials": 1}
    slow = start(tmp_path, changes, 5.0)
    sweep = opened(tmp_path, changes)
    wait_for_step(sweep.folder / "trials" / "0", 0)
    said = json.loads(ends(start(tmp_path, changes, 0.0)))["said"]
    ends(slow)
    assert said == ["all trials are taken; waiting for the end of 0"]
    assert states(sweep) == ["COMPLETE"]
    assert len(starts(sweep, sweep.trials[0])) == 1


def test_another_search_in_the_same_database_is_refused(tmp_path: Path, postgres: str) -> None:
    changes = {"name": "shared", "storage": postgres}
    opened(tmp_path, changes)
    search = {"train.optimizer.lr": {"type": "float", "low": 1e-4, "high": 1e-3}}
    with pytest.raises(SweepError, match=r"a study shared of another search \(search\.method"):
        # From another folder, as another user would.
        opened(tmp_path / "other", changes | {"search": search})


@pytest.mark.parametrize(
    ("address", "error", "said"),
    [
        (
            "postgresql+psycopg://mupo:secret@127.0.0.1:9/none?connect_timeout=2",
            SweepError,
            r"storage postgresql\+psycopg://mupo:\*\*\*@127\.0\.0\.1:9/none\S* cannot be reached: "
            ".*refused",
        ),
        ("somewhere", ConfigError, r"got 'somewhere'\.\.\., should read like postgresql\+psycopg:"),
        ("mysql+nothing://u:p@h/d", ConfigError, r"got 'mysql\+nothing'"),
        ("mysql+pymysql://u:p@h/d", ConfigError, r"its driver is missing \(No module named 'pym"),
    ],
)
def test_a_storage_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, error: type, said: str
) -> None:
    monkeypatch.setattr("mupo_ray.tune.storage._PAUSE_S", 0.01)
    with pytest.raises(error, match=said) as caught:
        opened(tmp_path, {"storage": address})
    assert "secret" not in str(caught.value)
