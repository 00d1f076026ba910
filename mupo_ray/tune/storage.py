"""Where a study is kept, and the files that its workers hold.

The kernel lets go of a held file however its process ends. One such file is the lock between the
workers of a sweep; others say of each worker that it lives, for a journal file, unlike a database,
has no signs of life. All hosts of a sweep see them where its folder is on a file system with POSIX
locks, as NFS is.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy
from filelock import FileLock, Timeout
from optuna.storages import JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from mupo_ray.errors import ConfigError, SweepError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optuna.storages import BaseStorage

    from mupo_ray.tune.spec import SweepConfig

JOURNAL_FILE = "journal.log"
_ATTEMPTS = 5
_PAUSE_S = 1.0
_LOCK_TIMEOUT_S = 600.0


def open_storage(config: SweepConfig, folder: Path) -> BaseStorage:
    """Open a sweep's storage, made where there is none.

    Raises:
        ConfigError: an address that is none, or of a database without its driver.
        SweepError: the storage cannot be reached.
    """
    if config.storage is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return JournalStorage(JournalFileBackend(str(folder / JOURNAL_FILE)))
        except OSError as err:
            raise SweepError(f"storage {folder / JOURNAL_FILE}: {err.strerror}") from None
    address = _without_password(config.storage)
    for attempt in range(_ATTEMPTS):
        try:
            return RDBStorage(
                config.storage,
                heartbeat_interval=config.heartbeat_s,
                heartbeat_stale_trial_callback=retry_callback(config),
                engine_kwargs={"pool_pre_ping": True},
            )
        except ImportError as err:
            raise ConfigError(
                f"storage {address}: its driver is missing ({_first_line(err.__cause__ or err)}); "
                'for PostgreSQL: pip install "mupo_ray[postgres]"'
            ) from None
        except SQLAlchemyError as err:
            # Processes that make a database's tables at the same time get in each other's way.
            if attempt == _ATTEMPTS - 1:
                raise SweepError(
                    f"storage {address} cannot be reached: {_first_line(getattr(err, 'orig', err))}"
                ) from None
            time.sleep(_PAUSE_S)
    raise AssertionError("unreachable")


def retry_callback(config: SweepConfig) -> RetryHeartbeatStaleTrialCallback:
    """Queues the trial of a worker that died, with the same values."""
    return RetryHeartbeatStaleTrialCallback(max_retry=config.max_retries)


@contextmanager
def held(path: Path) -> Iterator[FileLock]:
    """Hold a file once nobody else does; the block may release it before its end.

    Raises:
        SweepError: another process keeps it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(path, _LOCK_TIMEOUT_S)
    try:
        lock.acquire()
    except Timeout:
        raise SweepError(
            f"{path}: another worker has held it for {_LOCK_TIMEOUT_S:g} s; a worker that hangs "
            "should be ended"
        ) from None
    try:
        yield lock
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Whether a living process holds a file."""
    if not path.exists():
        return False
    try:
        with _lock(path, 0.0):
            return False
    except Timeout:
        return True


def _lock(path: Path, timeout_s: float) -> FileLock:
    # Never a file whose mere presence is the lock: a killed worker would leave it behind.
    return FileLock(path, timeout_s, fallback_to_soft=False)


def _without_password(address: str) -> str:
    """A database's address without its password.

    Raises:
        ConfigError: it is no address.
    """
    try:
        url = sqlalchemy.engine.make_url(address)
        url.get_dialect()
    except (ArgumentError, NoSuchModuleError):
        raise ConfigError(
            f"storage: got {address.partition('://')[0]!r}..., should read like "
            "postgresql+psycopg://user:password@host/database"
        ) from None
    except ImportError:
        pass
    return url.render_as_string(hide_password=True)


def _first_line(err: object) -> str:
    return (str(err).strip().splitlines() or [repr(err)])[0]
