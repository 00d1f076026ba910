"""Where a study is kept: a journal file in the sweep's folder, or a database."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from mupo_ray.errors import ConfigError, SweepError

if TYPE_CHECKING:
    from pathlib import Path

    from optuna.storages import BaseStorage

    from mupo_ray.tune.spec import SweepConfig

JOURNAL_FILE = "journal.log"
_ATTEMPTS = 5
_PAUSE_S = 1.0


def open_storage(config: SweepConfig, folder: Path) -> BaseStorage:
    """Open a sweep's storage, made where there is none.

    Raises:
        ConfigError: an address that is none, or of a database without its driver.
        SweepError: the storage cannot be reached.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
    if config.storage is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return JournalStorage(JournalFileBackend(str(folder / JOURNAL_FILE)))
        except OSError as err:
            raise SweepError(f"storage {folder / JOURNAL_FILE}: {err.strerror}") from None
    shown = shown_address(config.storage)
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
                f"storage {shown}: its driver is missing ({_first_line(err.__cause__ or err)}); "
                'for PostgreSQL: pip install "mupo_ray[postgres]"'
            ) from None
        except SQLAlchemyError as err:
            # Processes that make a database's tables at the same time get in each other's way.
            if attempt == _ATTEMPTS - 1:
                raise SweepError(
                    f"storage {shown} cannot be reached: {_first_line(getattr(err, 'orig', err))}"
                ) from None
            time.sleep(_PAUSE_S)
    raise AssertionError("unreachable")


def retry_callback(config: SweepConfig) -> RetryHeartbeatStaleTrialCallback:
    """Queues the trial of a worker that died, with the same values."""
    return RetryHeartbeatStaleTrialCallback(max_retry=config.max_retries)


def shown_address(address: str) -> str:
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
