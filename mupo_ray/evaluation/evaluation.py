r"""An evaluation from its sets to its files; killed and started again it samples what is missing.

sets --prompts--> not on disk yet --> Sampler --> responses.jsonl, as they arrive
                          |  all sets in one stream: engines stay full to the end
                          v
all responses --> verdicts, embeddings --> samples.parquet, predictions.tsv of each set
                                       --> results.json, report.html
"""

from __future__ import annotations

import datetime
import logging
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mupo_ray.core.seeding import derive_seed
from mupo_ray.data.stream import Dropped, iter_prompts
from mupo_ray.errors import DataError
from mupo_ray.evaluation.judging import Question, judge_stored
from mupo_ray.evaluation.measures import measure_evaluation
from mupo_ray.evaluation.predictions import PREDICTIONS_FILE, write_predictions
from mupo_ray.evaluation.results import RESULTS_FILE, save_results
from mupo_ray.evaluation.samples import SAMPLES_FILE, save_problems
from mupo_ray.evaluation.sets import open_set
from mupo_ray.evaluation.store import STORE_FILE, Kind, ResponseStore
from mupo_ray.observability.progress import SamplingProgress
from mupo_ray.rollout.pool import SamplingPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import TextIO

    from mupo_ray.evaluation.contestants import Contestant
    from mupo_ray.evaluation.results import EvalResults, SamplingSettings
    from mupo_ray.evaluation.samples import EvaluatedProblem
    from mupo_ray.evaluation.sets import EvalSource, SetSpec
    from mupo_ray.evaluation.values import FurtherMeasures
    from mupo_ray.types import Prompt

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class SetRun:
    """A set while it is evaluated."""

    source: EvalSource
    store: ResponseStore
    questions: list[Question] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of the set."""
        return self.source.spec.name


def evaluate_sets(
    contestant: Contestant,
    specs: Sequence[SetSpec],
    out: Path,
    *,
    sampling: SamplingSettings,
    has_greedy: bool = True,
    limit: int | None = None,
    ks: Sequence[int] = (),
    further: FurtherMeasures | None = None,
    progress_to: TextIO,
) -> EvalResults:
    """Evaluate a model on sets.

    Args:
        contestant: the model.
        specs: of the sets.
        out: folder of the evaluation; one begun before is gone on with.
        sampling: how samples are drawn.
        has_greedy: whether each problem is answered at temperature 0 too.
        limit: rows of each set, from its start; None takes all.
        ks: as for `measure_evaluation`.
        further: as for `measure_evaluation`.
        progress_to: where progress is shown.

    Raises:
        MupoError: a set, the folder or the model is not what it should be, or sampling failed;
            what has arrived stays in the folder.
    """
    plans = sampling_plans(sampling, has_greedy=has_greedy)
    with ExitStack() as stack:
        runs = [
            SetRun(
                source=source, store=stack.enter_context(_store(contestant, source, sampling, out))
            )
            for source in [open_set(spec, out / spec.name) for spec in specs]
        ]
        _sample(contestant, runs, plans, limit, progress_to)
        sets = _judge(contestant, runs)
    for run in runs:
        save_problems(out / run.name / SAMPLES_FILE, sets[run.name])
        write_predictions(out / run.name / PREDICTIONS_FILE, run.source, sets[run.name], limit)
    results = measure_evaluation(
        sets,
        model=contestant.name,
        created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        sampling=sampling,
        data={run.name: str(Path(run.source.table.spec).absolute()) for run in runs},
        ks=ks,
        further=further,
    )
    for name, alone in results.sets.items():
        of_set = replace(results, sets={name: alone}, micro=None, macro=None)
        save_results(out / name / RESULTS_FILE, of_set)
    save_results(out / RESULTS_FILE, results)
    return results


def sampling_plans(sampling: SamplingSettings, *, has_greedy: bool) -> dict[Kind, SamplingPlan]:
    """What is asked of every prompt.

    A sample's seed derives from the seed, the prompt and the sample's number alone; it is the one
    that evaluation in training has.
    """
    plans = {}
    if has_greedy:
        plans[Kind.GREEDY] = SamplingPlan(
            num_generations=1,
            max_new_tokens=sampling.max_new_tokens,
            temperature=0.0,
            top_p=1.0,
            seed=0,
            with_logprobs=False,
        )
    if sampling.num_samples > 0:
        plans[Kind.SAMPLES] = SamplingPlan(
            num_generations=sampling.num_samples,
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=derive_seed(sampling.seed, "eval"),
            with_logprobs=False,
        )
    return plans


def _store(
    contestant: Contestant, source: EvalSource, sampling: SamplingSettings, out: Path
) -> ResponseStore:
    return ResponseStore(
        out / source.spec.name / STORE_FILE,
        depends_on={**contestant.depends_on, "set": source.fingerprint, **asdict(sampling)},
        about={"model": contestant.name, "set": source.spec.source},
    )


def _sample(
    contestant: Contestant,
    runs: Sequence[SetRun],
    plans: Mapping[Kind, SamplingPlan],
    limit: int | None,
    progress_to: TextIO,
) -> None:
    per_row = sum(plan.num_generations for plan in plans.values())
    sizes = [run.source.table.num_rows for run in runs]
    rows = sum(size if limit is None else min(limit, size) for size in sizes)
    with SamplingProgress(rows * per_row, progress_to) as progress:
        sent: list[tuple[SetRun, str, Kind]] = []
        tasks = _missing(contestant, runs, plans, limit, progress, sent)
        first = next(tasks, None)
        if first is not None:
            with contestant.sampler() as sampler:
                progress.begin()
                for number, responses in sampler.stream(chain([first], tasks)):
                    run, prompt_id, kind = sent[number]
                    run.store.add(prompt_id, kind, responses)
                    progress.sampled(len(responses), sum(r.num_tokens for r in responses))
    for run in runs:
        if not run.questions:
            reasons = "; ".join(item.message for item in run.dropped[:3])
            raise DataError(
                f"set {run.name}: none of {len(run.dropped)} rows can be asked: {reasons}"
            )


def _missing(
    contestant: Contestant,
    runs: Sequence[SetRun],
    plans: Mapping[Kind, SamplingPlan],
    limit: int | None,
    progress: SamplingProgress,
    sent: list[tuple[SetRun, str, Kind]],
) -> Iterator[tuple[Prompt, SamplingPlan]]:
    """Requests that no response is stored for; notes which is which in `sent`."""
    for run in runs:
        on_the_way: set[tuple[str, Kind]] = set()
        for item in iter_prompts(run.source.table, contestant.renderer, limit):
            if isinstance(item, Dropped):
                logger.warning("set %s, dropped (%s): %s", run.name, item.reason, item.message)
                run.dropped.append(item)
                progress.left_out(sum(plan.num_generations for plan in plans.values()))
                continue
            run.questions.append(Question.of(item))
            for kind, plan in plans.items():
                key = (item.prompt_id, kind)
                # A row that repeats another has its seeds, and so its responses.
                if run.store.get(*key) is not None or key in on_the_way:
                    progress.found(plan.num_generations)
                    continue
                on_the_way.add(key)
                sent.append((run, *key))
                yield item, plan


def _judge(contestant: Contestant, runs: Sequence[SetRun]) -> dict[str, list[EvaluatedProblem]]:
    with ExitStack() as stack:
        embedder = None
        if contestant.embedder is not None:
            embedder = stack.enter_context(contestant.embedder())
        return {
            run.name: list(
                judge_stored(run.name, run.questions, run.store, contestant.verifier, embedder)
            )
            for run in runs
        }
