"""One way to make seeds: every random choice derives from the run's seed and what it is for."""

from __future__ import annotations

import hashlib
import operator

# 31 bits is what every consumer takes: vLLM's sampling parameters, torch generators and numpy's
# legacy seed, which refuses 2**32 and above.
_SEED_BITS = 31


def derive_seed(run_seed: int, *parts: int | str) -> int:
    """Hash a run's seed and what the randomness is for into a fresh seed.

    The same arguments give the same seed in every process, on every platform and Python version.
    Arguments are tagged with type and length, so `("a", "bc")` and `("ab", "c")`, or `1` and `"1"`,
    never share one.

    Args:
        run_seed: seed of the whole run.
        parts: what the seed is for, for instance prompt id, policy version, response index.

    Returns:
        An integer in [0, 2**31).

    Raises:
        TypeError: a part is neither an integer nor a string.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (run_seed, *parts):
        if isinstance(part, str):
            tag, payload = b"s", part.encode()
        else:
            tag, payload = b"i", str(operator.index(part)).encode()
        digest.update(tag + len(payload).to_bytes(8, "little") + payload)
    return int.from_bytes(digest.digest(), "little") % (1 << _SEED_BITS)
