"""Two evaluations of the same problems, compared problem by problem.

pair by prompt_id --> McNemar of greedy answers
                  --> bootstrap of paired differences
                  --> correlation of diversity and pass@k
                  --> problems that one run alone solves

The file `compare.json` holds a `Comparison`. Within a `schema_version` keys are added, never
renamed, removed or given another meaning.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter
from scipy.stats import binomtest

from mupo_ray.core.intervals import paired_bootstrap, spearman_interval
from mupo_ray.core.seeding import derive_seed
from mupo_ray.errors import DataError
from mupo_ray.evaluation.answers import answer_key
from mupo_ray.evaluation.results import RESULTS_FILE, LeftOut, load_results
from mupo_ray.evaluation.samples import SAMPLES_FILE, load_problems
from mupo_ray.evaluation.values import (
    Floats,
    fewest_samples,
    majority_values,
    pass_values,
    plain_values,
)
from mupo_ray.files import write_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mupo_ray.evaluation.results import EvalResults
    from mupo_ray.evaluation.samples import EvaluatedProblem, JudgedResponse

    Pair = tuple[EvaluatedProblem, EvaluatedProblem]

SCHEMA_VERSION = 1
LEVEL = 0.95
NUM_RESAMPLES = 4000

_PLAIN = ("diversity", "effective_strategies", "answer_entropy", "length")


@dataclass(frozen=True, slots=True, kw_only=True)
class McNemar:
    """Greedy answers to the same problems, tested exactly."""

    num_problems: int
    acc_a: float
    acc_b: float
    num_both: int
    """Problems that both solve."""
    num_only_a: int
    num_only_b: int
    num_neither: int
    p_value: float
    """Two-sided: chance of a split of the problems that one run alone solves at least as uneven,
    were both runs as likely to be that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A measure of both runs on the same problems."""

    num_problems: int
    a: float
    b: float
    difference: float
    """b - a."""
    low: float
    high: float
    p_value: float
    """Two-sided, of the bootstrap; not corrected for how many measures are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Spearman's rank correlation over problems."""

    num_problems: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSided:
    """A problem that one run solves and the other never does."""

    prompt_id: str
    question: str
    answer: str
    """Gold."""
    category: str | None
    num_right: int
    """Right samples of the run that solves it."""
    num_samples: int
    """Its samples."""
    num_samples_other: int
    """Samples of the other run, none of them right, nor its greedy answer."""
    right_text: str
    """The first right response."""
    wrong_text: str
    """The first response of the other run with its most frequent answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetComparison:
    """Two runs on one set, paired by `prompt_id`."""

    num_shared: int
    num_only_a: int
    """Problems that run b has not; they are in nothing below."""
    num_only_b: int
    greedy: McNemar | None
    """None where no problem has a greedy answer in both."""
    differences: dict[str, Difference]
    """Measure -> its difference: `pass@k` for every k up to the fewest samples, `majority@k` at the
    largest, `diversity`, `effective_strategies`, `answer_entropy`, `length`."""
    diversity_and_pass: dict[str, dict[int, Correlation]]
    """`a`, `b` -> k -> correlation of a problem's diversity and its pass@k in that run;
    `difference`: of what the two gained from a to b."""
    only_a: tuple[OneSided, ...]
    """What a solves and b never does, most often solved first."""
    only_b: tuple[OneSided, ...]
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `compare.json` holds."""

    schema_version: int = SCHEMA_VERSION
    run_a: str
    run_b: str
    level: float
    """Of the intervals."""
    num_resamples: int
    seed: int
    sets: dict[str, SetComparison]
    sets_only_a: tuple[str, ...] = ()
    sets_only_b: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Ways in which the runs were sampled differently."""


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


def save_comparison(path: Path, comparison: Comparison) -> None:
    """Write `compare.json`, whole or not at all."""
    write_text(path, TypeAdapter(Comparison).dump_json(comparison, indent=2).decode() + "\n")


def main_ks(ks: Iterable[int]) -> list[int]:
    """The powers of two among some k, and the largest: enough to see a curve by."""
    ordered = sorted(ks)
    return [k for k in ordered if k & (k - 1) == 0 or k == ordered[-1]]


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
        only_a=_one_sided(pairs),
        only_b=_one_sided([(b, a) for a, b in pairs]),
        left_out=tuple(left_out),
    )


def _keyed(problems: Sequence[EvaluatedProblem]) -> dict[tuple[str, int], EvaluatedProblem]:
    """Problems by id; a row that a file holds twice is paired with its like in order."""
    copies: Counter[str] = Counter()
    keyed = {}
    for problem in sorted(problems, key=lambda p: p.position):
        keyed[problem.prompt_id, copies[problem.prompt_id]] = problem
        copies[problem.prompt_id] += 1
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
    by_name = {}
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
            by_name[name] = Difference(
                num_problems=len(places),
                a=float(values[i, 0].mean()),
                b=float(values[i, 1].mean()),
                difference=float(tested.values[i]),
                low=float(tested.lows[i]),
                high=float(tested.highs[i]),
                p_value=float(tested.p_values[i]),
            )
    return {name: by_name[name] for name in rows if name in by_name}


def _correlations(
    rows: Mapping[str, Floats], seed: int, left_out: list[LeftOut]
) -> dict[str, dict[int, Correlation]]:
    ks = main_ks(int(name.removeprefix("pass@")) for name in rows if name.startswith("pass@"))
    by_side: dict[str, dict[int, Correlation]] = {"a": {}, "b": {}, "difference": {}}
    for label, values in by_side.items():
        missing = []
        for k in ks:
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
    return by_side


def _side(row: Floats, label: str) -> Floats:
    side: Floats = row[1] - row[0] if label == "difference" else row["ab".index(label)]
    return side


def _one_sided(pairs: Sequence[Pair]) -> tuple[OneSided, ...]:
    """Problems that the first of each pair solves and the second never does.

    Solved is a problem with a right answer among samples and greedy one; never solved one with
    none among both. Most often solved comes first: one right answer of sixteen is little evidence.
    """
    solved = []
    for solver, other in pairs:
        right = [r for r in _responses(solver) if r.is_correct]
        wrong = _responses(other)
        if not right or not wrong or any(r.is_correct for r in wrong):
            continue
        solved.append(
            OneSided(
                prompt_id=solver.prompt_id,
                question=solver.question,
                answer=solver.answer,
                category=solver.category,
                num_right=solver.num_correct,
                num_samples=len(solver.samples),
                num_samples_other=len(other.samples),
                right_text=right[0].text,
                wrong_text=_typical(wrong).text,
            )
        )
    return tuple(sorted(solved, key=lambda item: -item.num_right))


def _responses(problem: EvaluatedProblem) -> tuple[JudgedResponse, ...]:
    greedy = () if problem.greedy is None else (problem.greedy,)
    return (*problem.samples, *greedy)


def _typical(responses: Sequence[JudgedResponse]) -> JudgedResponse:
    """The first response with the most frequent answer."""
    keys = [None if r.extracted is None else answer_key(r.extracted) for r in responses]
    most = Counter(key for key in keys if key is not None).most_common(1)
    return responses[keys.index(most[0][0])] if most else responses[0]
