"""The trainings of a table: found by their keys, or run, data set by data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from fasteraa.errors import DataError
from fasteraa.reproduce.schema import DATA, Line, Search
from fasteraa.reproduce.search_store import SearchStore
from fasteraa.reproduce.setting import Setting
from fasteraa.train.job import Outcome, TrainJob, make_job
from fasteraa.train.recipe import TrainRecipe
from fasteraa.train.run_cache import RunCache
from fasteraa.train.runner import make_runner, run_jobs
from fasteraa.train.split import Split, open_split, twice_words
from fasteraa.train.tune import best_of, tuning_jobs, with_rates_of

Values = dict[int, float]  # seed -> measured


@dataclass(frozen=True)
class Deviation:
    """A count of what was trained on that is not the table's."""

    actual: str  # 60 images
    planned: str


class Trainings:
    """What there is of the trainings of a table, and how to run the rest."""

    def __init__(self, setting: Setting, searches: SearchStore):
        self.setting, self.searches = setting, searches
        self.cache = RunCache(setting.out)
        self.missing: dict[str, str] = {}  # named set -> why it is not there
        self.unread: set[str] = set()  # data sets to train on that are not there
        self.differences: dict[str, list[Deviation]] = {}  # data set -> of what is there
        self.remarks: dict[str, None] = {}
        self.devices: set[str] = set()
        self.shares: list[float] = []  # seconds of each training that was found or run

    def measure(self, data: str, lines: Mapping[int, Line], run: bool) -> dict[int, Values]:
        """Index of a line on the data set -> its values; with `run` those that are missing are trained first."""
        try:
            split = self._open(data)
        except DataError as error:
            self.missing[DATA[data].source] = str(error)
            self.unread.add(data)
            return {}
        self.shares.clear()
        recipes = self._recipes(data, split, lines, run)
        jobs = {index: self._jobs(line, split, recipes[line.recipe]) for index, line in lines.items()}
        if run:
            seeds = range(self.setting.seeds)  # so that a table that is stopped has something of every line
            self._run([of_line[seed] for seed in seeds for of_line in jobs.values() if seed in of_line])
        values = {index: self._values(data, line, jobs[index]) for index, line in lines.items()}
        if any(values.values()):
            self._remark_on_images(data, split)
        return values

    def _recipes(self, data: str, split: Split, lines: Mapping[int, Line], run: bool) -> dict[str, TrainRecipe | None]:
        """By their names in lines; None where the trainings that a recipe is to be tuned by are missing."""
        recipes = {each.recipe: self.setting.recipe(each) for each in lines.values()}
        return {name: self._tuned(data, name, each, split, run) for name, each in recipes.items()}

    def _tuned(self, data: str, name: str, recipe: TrainRecipe, split: Split, run: bool) -> TrainRecipe | None:
        if not self.setting.tune:
            return recipe
        jobs = tuning_jobs(split, recipe)
        if run:
            self._run(jobs)
        outcomes = {job.key: outcome for job in jobs if (outcome := self.cache.read(job)) is not None}
        if len(outcomes) < len(jobs):
            return None
        best = with_rates_of(recipe, best_of(outcomes, jobs, self.setting.say))
        rates = f"learning rate {best.learning_rate:.3g}, weight decay {best.weight_decay:.3g}"
        self._remark(f"{data}, {name}: {rates}, the best of {len(jobs)} without a policy on held-out training images")
        return best

    def _jobs(self, line: Line, split: Split, recipe: TrainRecipe | None) -> dict[int, TrainJob]:
        assert isinstance(line.policy, str | Search)
        if recipe is None:
            return {}
        label, policies = f"{line.label} {recipe.network}", self.searches.policies(line.policy)
        return {seed: make_job(label, policy, recipe, seed, split) for seed, policy in policies.items()}

    def _run(self, jobs: list[TrainJob]) -> None:
        setting = self.setting
        engine, cache = setting.engine, self.cache.open()
        with make_runner(engine.name, cache, **engine.settings, command=setting.command) as runner:
            run_jobs(runner, jobs, setting.say, setting.until)

    def seconds(self) -> float | None:
        """Of a training of the table, on average: its own share where several shared a device."""
        return fmean(self.shares) if self.shares else None

    def _values(self, data: str, line: Line, jobs: Mapping[int, TrainJob]) -> Values:
        values = {}
        for seed, job in jobs.items():
            outcome = self.cache.read(job)
            if outcome is not None and outcome.failed:
                self._remark(f"a run diverged, {data}, {job.label}, seed {seed}: {outcome.failed}")
            elif outcome is not None:
                values[seed] = _measured(outcome, line.measure)
                self.shares.append(outcome.seconds)
                self.devices.add(f"runs on {outcome.record.get('device', 'unknown device')}")
        return values

    def _open(self, data: str) -> Split:
        setting, planned = self.setting, DATA[data]
        source = setting.known_source(planned.source)
        name = planned.split if source == planned.source else "train"
        split = open_split(
            source,
            folder=setting.out,
            data_root=setting.data_root,
            split=name,
            size=setting.size(planned.size),
            subset=setting.image_count(planned.source, setting.subset or planned.subset, name),
        )
        if not setting.quick:
            self.differences[data] = self._compare(data, split)
        return split

    def _compare(self, data: str, split: Split) -> list[Deviation]:
        """With what was planned, as far as numbers of images and classes show."""
        planned = DATA[data]
        images = planned.images or ("all" if self.setting.subset else None)
        counts = (("images", len(split.train), images), ("classes", len(split.train.classes), planned.classes))
        return [Deviation(f"{count} {what}", f"{plan}") for what, count, plan in counts if plan not in (None, count)]

    def _remark_on_images(self, data: str, split: Split) -> None:
        planned, source = DATA[data], self.setting.source(DATA[data].source)
        if source != planned.source and planned.split != "train":
            self._remark(f"{source} stands in for {planned.source} with its split train, not {planned.split}")
        for each in self.differences.get(data, []):
            self._remark(f"{data}: trained on {each.actual} of {source}, not on {each.planned}")
        if split.share:
            self._remark(f"{source} has no test images: errors are those on {split.name}, which searches saw")
        for image in split.broken:
            self._remark(f"left out, could not be read: {image}")
        if split.overlap_count:
            self._remark(f"{data}: {twice_words(split.overlap_count, len(split.held_out))}")

    def _remark(self, text: str) -> None:
        self.remarks[text] = None


def _measured(outcome: Outcome, measure: str) -> float:
    return outcome.error if measure == "error" else float(outcome.record[measure])
