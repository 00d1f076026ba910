"""Two evaluations of the same problems, compared problem by problem.

pair by prompt_id --> McNemar of greedy answers
                  --> bootstrap of paired differences
                  --> correlation of diversity and pass@k
                  --> problems that one run alone solves
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binomtest

from mupo_ray.core.intervals import paired_bootstrap, spearman_interval
from mupo_ray.core.seeding import derive_seed
from mupo_ray.errors import DataError
from mupo_ray.evaluation.comparison import (
    Comparison,
    Correlation,
    Difference,
    McNemar,
    SetComparison,
)
from mupo_ray.evaluation.one_sided import one_sided
from mupo_ray.evaluation.results import RESULTS_FILE, LeftOut, load_results
from mupo_ray.evaluation.samples import SAMPLES_FILE, load_problems
from mupo_ray.evaluation.values import (
    Floats,
    fewest_samples,
    majority_values,
    pass_values,
    plain_values,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mupo_ray.evaluation.results import EvalResults
    from mupo_ray.evaluation.samples import EvaluatedProblem

    Pair = tuple[EvaluatedProblem, EvaluatedProblem]

LEVEL = 0.95
NUM_RESAMPLES = 4000

_PLAIN = ("diversity", "effective_strategies", "answer_entropy", "length")


def compare_folders(run_a: Path, run_b: Path, *, seed: int = 0) -> Comparison:
    """Compare two folders of evaluations.

    Args:
        run_a: folder of the first, with `results.json` and `<set>/samples.parquet`.
        run_b: folder of the second.
        seed: of the resampling.

    Raises:
        DataError: a folder is not that of an evaluation, or the two have no problem in common.
    """
    (results_a, sets_a), (results_b, sets_b) = _read(run_a), _read(run_b)
    ours, theirs = asdict(results_a.sampling), asdict(results_b.sampling)
    return compare_runs(
        sets_a,
        sets_b,
        run_a=f"{run_a} ({results_a.model})",
        run_b=f"{run_b} ({results_b.model})",
        seed=seed,
        notes=[
            f"sampled differently: {name} is {ours[name]} in a, {theirs[name]} in b"
            for name in ours
            if ours[name] != theirs[name]
        ],
    )


def compare_runs(
    sets_a: Mapping[str, Sequence[EvaluatedProblem]],
    sets_b: Mapping[str, Sequence[EvaluatedProblem]],
    *,
    run_a: str,
    run_b: str,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> Comparison:
    """Compare two runs on the sets that both have.

    Args:
        sets_a: set -> problems of the first run.
        sets_b: the same of the second.
        run_a: name of the first run.
        run_b: name of the second.
        seed: of the resampling.
        notes: passed on.

    Raises:
        DataError: no set is in both, or a set that is in both shares no problem.
    """
    shared = [name for name in sets_a if name in sets_b]
    if not shared:
        raise DataError(
            f"the runs share no set: {run_a} has {sorted(sets_a)}, {run_b} has {sorted(sets_b)}; "
            "evaluate both on one set at least"
        )
    return Comparison(
        run_a=run_a,
        run_b=run_b,
        level=LEVEL,
        num_resamples=NUM_RESAMPLES,
        seed=seed,
        sets={
            name: _compare_set(name, sets_a[name], sets_b[name], derive_seed(seed, name))
            for name in shared
        },
        sets_only_a=tuple(name for name in sets_a if name not in sets_b),
        sets_only_b=tuple(name for name in sets_b if name not in sets_a),
        notes=tuple(notes),
    )


def _read(folder: Path) -> tuple[EvalResults, dict[str, list[EvaluatedProblem]]]:
    if not (folder / RESULTS_FILE).is_file():
        what = f"has no {RESULTS_FILE}" if folder.is_dir() else "does not exist"
        raise DataError(f"{folder} {what}; expected the folder of an evaluation")
    results = load_results(folder / RESULTS_FILE)
    return results, {name: load_problems(folder / name / SAMPLES_FILE) for name in results.sets}


def _compare_set(
    name: str, ours: Sequence[EvaluatedProblem], theirs: Sequence[EvaluatedProblem], seed: int
) -> SetComparison:
    by_key = _keyed(theirs)
    pairs = [(a, by_key[key]) for key, a in _keyed(ours).items() if key in by_key]
    if not pairs:
        raise DataError(
            f"set {name!r}: none of the {len(ours)} and {len(theirs)} problems are in both runs; a "
            "problem is the same where question, pictures and answer are, so evaluate both on "
            "one file"
        )
    left_out: list[LeftOut] = []
    rows = _rows(pairs, left_out)
    return SetComparison(
        num_shared=len(pairs),
        num_only_a=len(ours) - len(pairs),
        num_only_b=len(theirs) - len(pairs),
        greedy=_mcnemar(pairs, left_out),
        differences=_differences(rows, seed, left_out),
        diversity_and_pass=_correlations(rows, seed, left_out),
        only_a=one_sided(pairs),
        only_b=one_sided([(b, a) for a, b in pairs]),
        left_out=tuple(left_out),
    )


def _keyed(problems: Sequence[EvaluatedProblem]) -> dict[tuple[str, int], EvaluatedProblem]:
    """Problems by id; a row that a file holds twice is paired with its like in order."""
    seen: Counter[str] = Counter()
    keyed = {}
    for problem in sorted(problems, key=lambda p: p.position):
        keyed[problem.prompt_id, seen[problem.prompt_id]] = problem
        seen[problem.prompt_id] += 1
    return keyed


def _mcnemar(pairs: Sequence[Pair], left_out: list[LeftOut]) -> McNemar | None:
    greedy = [(a.greedy.is_correct, b.greedy.is_correct) for a, b in pairs if a.greedy and b.greedy]
    if not greedy:
        reason = "no problem has a greedy answer in both runs"
        left_out.append(LeftOut(measure="acc@1", reason=reason))
        return None
    counts = Counter(greedy)
    only_a, only_b = counts[True, False], counts[False, True]
    discordant = only_a + only_b
    return McNemar(
        num_problems=len(greedy),
        acc_a=(counts[True, True] + only_a) / len(greedy),
        acc_b=(counts[True, True] + only_b) / len(greedy),
        num_both=counts[True, True],
        num_only_a=only_a,
        num_only_b=only_b,
        num_neither=counts[False, False],
        p_value=float(binomtest(only_a, discordant).pvalue) if discordant else 1.0,
    )


def _rows(pairs: Sequence[Pair], left_out: list[LeftOut]) -> dict[str, Floats]:
    """Measure -> [2, P] values of run a and run b; NaN where a run has none of a problem."""
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    most = min(map(fewest_samples, sides))
    ks = range(1, most + 1)
    rows: dict[str, Floats] = {}
    if most:
        passes = np.stack([pass_values(side, ks) for side in sides])
        rows |= {f"pass@{k}": passes[:, k - 1] for k in ks}
        rows[f"majority@{most}"] = np.stack([majority_values(side, [most])[0] for side in sides])
    beyond = max(max((len(p.samples) for p in side), default=0) for side in sides)
    if beyond > most:
        reason = f"a problem has {most} samples in one of the runs, and {beyond} is the most"
        left_out.append(LeftOut(measure=f"pass@k for k > {most}", reason=reason))
    for name in _PLAIN:
        rows[name] = np.stack([plain_values(side, name) for side in sides])
    return rows


def _differences(
    rows: Mapping[str, Floats], seed: int, left_out: list[LeftOut]
) -> dict[str, Difference]:
    # Measures that the same problems have share the resamples.
    together: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, row in rows.items():
        together[tuple(np.flatnonzero(~np.isnan(row).any(0)))].append(name)
    found = {}
    for places, names in together.items():
        if len(places) < 2:
            reason = f"{len(places)} problems have it in both runs; at least 2 are needed"
            left_out += [LeftOut(measure=name, reason=reason) for name in names]
            continue
        values = np.stack([rows[name][:, places] for name in names])
        tested = paired_bootstrap(
            values[:, 1] - values[:, 0], seed=seed, level=LEVEL, num_resamples=NUM_RESAMPLES
        )
        for i, name in enumerate(names):
            found[name] = Difference(
                num_problems=len(places),
                a=float(values[i, 0].mean()),
                b=float(values[i, 1].mean()),
                difference=float(tested.values[i]),
                low=float(tested.lows[i]),
                high=float(tested.highs[i]),
                p_value=float(tested.p_values[i]),
            )
    return {name: found[name] for name in rows if name in found}


def _correlations(
    rows: Mapping[str, Floats], seed: int, left_out: list[LeftOut]
) -> dict[str, dict[int, Correlation]]:
    ks = sorted(int(name.removeprefix("pass@")) for name in rows if name.startswith("pass@"))
    shown = [k for k in ks if k & (k - 1) == 0 or k == ks[-1]]
    found: dict[str, dict[int, Correlation]] = {"a": {}, "b": {}, "difference": {}}
    for label, values in found.items():
        missing = []
        for k in shown:
            diversity, chance = _side(rows["diversity"], label), _side(rows[f"pass@{k}"], label)
            known = ~np.isnan(diversity)
            interval = spearman_interval(diversity[known], chance[known], seed=seed, level=LEVEL)
            if interval is None or interval.low is None or interval.high is None:
                missing.append(k)
                continue
            values[k] = Correlation(
                num_problems=int(known.sum()),
                value=interval.value,
                low=interval.low,
                high=interval.high,
            )
        if missing:
            name = f"correlation of diversity and pass@k in {label}, k = {missing}"
            reason = "fewer than 4 problems have both, or one of the two is the same for all"
            left_out.append(LeftOut(measure=name, reason=reason))
    return found


def _side(row: Floats, label: str) -> Floats:
    side: Floats = row[1] - row[0] if label == "difference" else row["ab".index(label)]
    return side
