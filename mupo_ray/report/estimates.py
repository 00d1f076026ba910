"""Estimates of several models side by side: their names, meanings and table cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mupo_ray.evaluation.results import Estimate, Estimates, EvalResults, SetResults

    Columns = Mapping[str, Estimates | None]
    """Model -> what it measured, None where it did not."""

MEANINGS = {
    "acc@1": "greedy answer right",
    "acc@1_sampled": "share of the samples that are right",
    "pass@k": "unbiased chance of a right one among k samples",
    "any@k": "share of disjoint blocks of k samples with a right one",
    "majority@k": "chance that the most frequent answer of k samples is right",
    "best@k": "chance that the best-scored of k samples is right",
    "diversity": "mean cosine distance between the reasoning of two samples",
    "effective_strategies": "effective number of ways of reasoning (Vendi score)",
    "answer_entropy": "entropy of the answers of a question's samples, nat",
    "length": "tokens of a sample",
    "truncated_frac": "share of samples cut at the token limit",
    "format": "share of samples in the asked-for shape",
    "strategies/entropy": "entropy of the recognised strategies of a question's samples, nat",
    "strategies/num_in_first_8": "distinct recognised strategies in a question's first 8 samples",
    "strategies/fidelity": "share of recognised chains whose box follows from their own readings",
}
"""Measure -> what it is, in words."""

OF_K = {
    "pass@k": "pass_at_k",
    "majority@k": "majority_at_k",
    "best@k": "best_of_k",
    "any@k": "any_of_k",
}
"""Measure of k -> field of `Estimates`."""

_WHOLE_NUMBERS = ("length",)


def set_names(results: Mapping[str, EvalResults]) -> list[str]:
    """Every set that a model was evaluated on, in the order of the first that has it."""
    return list(dict.fromkeys(name for found in results.values() for name in found.sets))


def micro_of(found: SetResults | None) -> Estimates | None:
    """Estimates over all problems of a set; None where the model has not been asked it."""
    return None if found is None else found.micro


def estimate_of(estimates: Estimates | None, name: str) -> Estimate | None:
    """A measure by the name that tables give it."""
    if estimates is None:
        return None
    kind, _, k = name.partition("@")
    if f"{kind}@k" in OF_K:
        found: dict[int, Estimate] = getattr(estimates, OF_K[f"{kind}@k"])
        return found.get(int(k))
    return estimates.measures.get(name)


def estimate_cell(estimate: Estimate | None, name: str = "") -> str:
    """HTML of an estimate with its interval below it; a dash where there is none."""
    if estimate is None:
        return "-"
    digits = 1 if name in _WHOLE_NUMBERS else 3
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.{digits}f}"
    spread = f"{estimate.low:.{digits}f}&ndash;{estimate.high:.{digits}f}"
    return f"{estimate.value:.{digits}f}<small>{spread}</small>"


def doubling(most: int) -> list[int]:
    """1, 2, 4, ... and the last k itself."""
    return sorted({*(1 << i for i in range(most.bit_length())), *([most] if most else [])})
