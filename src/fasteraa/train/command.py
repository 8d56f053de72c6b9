"""Any training at all: the user's own command, run once per policy and seed, and the score that it prints.

`python train.py --aug {policy} --seed {seed} --out {out}`: `{policy}` is a file with the policy, `{out}` an empty
folder for that run. The score is the last line `score: 0.123` of the output, or `{"score": 0.123}` in
`{out}/score.json`. What a run started and left behind ends with it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from fasteraa.errors import ConfigError, ExportError, RunError
from fasteraa.policy.policy import Policy
from fasteraa.runtime.documents import cut, read_json

PLACEHOLDERS = ("policy", "seed", "out")
_SCORE = re.compile(r"\s*score:\s*(\S+)\s*", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")  # and links and titles: within a line
_MOVE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # to another place of the terminal: what follows is another line
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")  # other braces are the command's own
_TAIL = 200_000  # bytes of the output in which a score is looked for
_QUOTED = 150  # characters of the last line that an error shows
_READ = frozenset((
    ".py", ".sh", ".bash", ".r", ".jl", ".lua", ".pl", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini",
))  # fmt: skip
_BETWEEN = re.compile(r"[\s=;,&|()'\"]+")  # the words of bash -c "...", and NAME=VALUE
_LOOK_S = 1.0  # between two looks whether a run has reached its limit
WritePolicy = Callable[[Policy, Path], None]


class TrainingFailed(RunError):
    """A run of the user's training gave no score; the others continue."""


class NoTimeLeft(TrainingFailed):
    """The limit on the whole race ended it: this says nothing about the policy."""


@dataclass(frozen=True)
class Command:
    """A command with placeholders, the file format of its policies, and a limit on the seconds of a run."""

    words: tuple[str, ...]
    write_policy: WritePolicy
    suffix: str = ".json"
    target: str = "json"
    seconds: float = math.inf
    _live: set[subprocess.Popen[bytes]] = field(default_factory=set, compare=False, repr=False)
    _stopped: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.words:
            raise ConfigError("a race needs the command that trains, after --: python train.py --aug {policy}")
        names = [name for word in self.words for name in _PLACEHOLDER.findall(word)]
        for name in names:
            if name not in PLACEHOLDERS:
                placeholders = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
                raise ConfigError(
                    f"the command has a placeholder {{{name}}} that is not known; there are {placeholders}"
                )
        if "policy" not in names:
            raise ConfigError("the command must say where the policy goes: {policy}, as in --aug {policy}")
        if shutil.which(self.words[0]) is None:
            raise ConfigError(f"the command {self.words[0]!r} was not found")

    @property
    def takes_seed(self) -> bool:
        return any("{seed}" in word for word in self.words)

    @property
    def key(self) -> str:
        """What makes it another training, for the cache: its words, the files among them, the format of policies."""
        contents = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in dict.fromkeys(self._files())]
        return json.dumps([list(self.words), self.target, contents])

    def _files(self) -> Iterator[str]:
        """Scripts and settings that its words name, below the current folder for `-m package.module`."""
        words = [part for word in self.words for part in (word, *_BETWEEN.split(word))]
        for before, word in zip(["", *words], words, strict=False):
            module = word.replace(".", os.sep) if before in ("-m", "--module") else None
            files = [f"{module}.py", os.path.join(module, "__main__.py")] if module else [word]
            yield from (file for file in files if Path(file).suffix.lower() in _READ and os.path.isfile(file))

    def check(self, policies: Mapping[str, Policy]) -> None:
        """Every policy, by its label, must have a file in the format: before the first run, not in each of them."""
        with TemporaryDirectory() as folder:
            for label, policy in sorted(policies.items(), key=lambda each: not each[1].does_nothing):
                try:
                    self.write_policy(policy, Path(folder) / f"policy{self.suffix}")
                except ExportError as error:  # of a policy that does nothing it is the format's own
                    raise ExportError(f"{error}" if policy.does_nothing else f"{label}: {error}") from error

    def __call__(
        self,
        policy: Policy,
        seed: int,
        folder: Path,
        gpu: str | None = None,
        usual: Callable[[], float] = lambda: math.inf,
        until: float = math.inf,
    ) -> float:
        """Run it and read its score; its policy and what it prints (`log.txt`) are in the folder, beside `{out}`.

        It is ended after `seconds`, and at `until` (time.time()). Without `seconds` the limit is `usual`, asked again
        and again: it follows from the runs that have ended meanwhile.
        """
        if self._stopped.is_set():
            raise TrainingFailed("it was stopped")
        if until <= time.time():
            raise NoTimeLeft("not run, time was up")
        folder = folder.resolve()
        file, out, log = folder / f"policy{self.suffix}", folder / "out", folder / "log.txt"
        out.mkdir()
        self.write_policy(policy, file)
        values = {"policy": str(file), "seed": str(seed), "out": str(out)}
        words = [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in self.words]
        environment = os.environ | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
        with log.open("wb") as output:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=os.name == "posix",
            )
            self._live.add(process)
            if self._stopped.is_set():  # meanwhile
                end(process)
            try:
                code = self._code(process, log, usual, until)
            finally:
                end(process)
                self._live.discard(process)
        if code:
            last = next((line for line in reversed(_lines(log)) if line.strip()), "")
            why = f" ({cut(last.strip(), _QUOTED)})" if last else ""
            raise TrainingFailed(f"it ended with exit code {code}{why}; its output is in {log}")
        return read_score(out, log)

    def _code(self, process: subprocess.Popen[bytes], log: Path, usual: Callable[[], float], until: float) -> int:
        began = time.monotonic()
        while True:
            passed, limit = time.monotonic() - began, usual() if math.isinf(self.seconds) else self.seconds
            if time.time() >= until:
                raise NoTimeLeft(f"ended after {passed:.0f} s, time was up; its output is in {log}")
            if passed >= limit:
                how = ", far longer than the others (--run-minutes allows more)" if math.isinf(self.seconds) else ""
                raise TrainingFailed(f"it took longer than {limit:g} s{how}; its output is in {log}")
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(_LOOK_S, limit - passed, until - time.time()))

    def stop(self) -> None:
        """End every run that is under way in other threads; none begins any more."""
        self._stopped.set()
        for process in tuple(self._live):
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """The process and what it started, which may have outlived it."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):  # nobody is left
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def read_score(out: Path, log: Path) -> float:
    """A finite number, from score.json or from the last line that has one."""
    file = out / "score.json"
    if file.is_file():
        try:
            return finite(read_json(file)["score"], str(file))
        except (ValueError, KeyError, TypeError, RunError) as error:
            if isinstance(error, TrainingFailed):
                raise
            raise TrainingFailed(f'{file} must hold {{"score": NUMBER}} ({cut(error, 100)})') from error
    for line in reversed(_lines(log)):
        if found := _SCORE.fullmatch(line[line.rfind("]score:") + 1 :]):  # a progress bar that was not closed ends in ]
            return finite(found[1], str(log))
    raise TrainingFailed(f"it printed no line 'score: NUMBER' and wrote no score.json; its output is in {log}")


def _lines(log: Path) -> list[str]:
    """The last lines, as a terminal shows them: a progress bar returns to the start of its line."""
    with log.open("rb") as written:
        written.seek(max(0, log.stat().st_size - _TAIL))
        text = written.read().decode(errors="replace")
    return _MOVE.sub("\n", _COLOUR.sub("", text)).splitlines()


def finite(value: object, where: str) -> float:
    try:
        score = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise TrainingFailed(f"its score is no number: {str(value)[:60]!r} ({where})") from None
    if isinstance(value, bool) or not math.isfinite(score):
        raise TrainingFailed(f"its score is not finite: {value} ({where})")
    return score


def visible_gpus(count: int) -> Sequence[str]:
    """Names for CUDA_VISIBLE_DEVICES, one each; empty without a GPU, and where the variable hides them all."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return [str(number) for number in range(count)]
    return [part.strip() for part in given.split(",") if part.strip()][:count]
