"""Errors a caller can act on.

    MupoError
    +-- ConfigError        a config file, key or value is wrong
    +-- DataError          a data file, row, image or chat template is wrong
    +-- PlacementError     the cluster cannot host the plan
    +-- RolloutError       an engine failed, was late, or answered from stale weights
    |   +-- StaleEngineError
    +-- RewardError        the answer verifier cannot run
    +-- EmbeddingError     reasoning texts could not be embedded
    +-- WeightSyncError    new weights did not reach an engine, or not whole
    +-- TrainingError      the update cannot go on (NaN loss)
    +-- CheckpointError    a checkpoint is incomplete or belongs to another run
    +-- SweepError         a sweep cannot go on: storage, another study, no trial succeeded

Wrong arguments to a function raise ValueError. Every message says what is wrong, the value got and
what would be right.
"""


class MupoError(Exception):
    """Base of all errors that mupo_ray raises on purpose."""


class ConfigError(MupoError):
    """A config file, key or value is wrong."""


class DataError(MupoError):
    """A data file, row, image or chat template is wrong."""


class PlacementError(MupoError):
    """The cluster cannot host the plan."""


class RolloutError(MupoError):
    """An engine failed, was late, or answered from stale weights."""


class StaleEngineError(RolloutError):
    """A response was sampled by another policy version than the one expected."""


class RewardError(MupoError):
    """The answer verifier cannot run."""


class EmbeddingError(MupoError):
    """Reasoning texts could not be embedded."""


class WeightSyncError(MupoError):
    """New weights did not reach an engine, or not whole."""


class TrainingError(MupoError):
    """The update cannot go on."""


class CheckpointError(MupoError):
    """A checkpoint is incomplete or belongs to another run."""


class SweepError(MupoError):
    """A sweep cannot go on."""


def cause_of(err: BaseException) -> str:
    """One line that says what went wrong, out of an error that came from an actor.

    Ray's own text holds the remote traceback; the error it wraps says it in its own words.
    """
    cause = getattr(err, "cause", None) or err
    lines = str(cause).strip().splitlines()
    return lines[-1] if lines else repr(cause)
