"""What the docs show is fresh, leads somewhere, and works: generated parts, pictures, links, nav, code, commands."""

import ast
import importlib.util
import json
import re
import shlex
import shutil
import tokenize
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer
import yaml
from PIL import Image

import fasteraa
from fasteraa.cli.app import _ORDER, app
from fasteraa.data import load
from fasteraa.data.resolve import SOURCES
from fasteraa.errors import ConfigError
from fasteraa.methods import METHODS
from fasteraa.methods.faster_aa.objective import penalty_gradient
from fasteraa.nets import Critic
from fasteraa.ops import OPS
from fasteraa.policy import Policy
from fasteraa.policy.named import NAMES
from fasteraa.runtime import registry
from fasteraa.testing.methods import check_method
from fasteraa.testing.ops import CHECKS, parity
from fasteraa.testing.runners import check_runner
from fasteraa.testing.sources import check_source
from fasteraa.train.runner import RUNNERS, local

ROOT = Path(__file__).resolve().parent.parent


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate, pictures, readme, reference, site = map(tool, ("generate", "pictures", "readme", "reference", "site"))
screenshot, set_counts = map(tool, ("screenshot", "counts"))
PAGES = [*site.pages(), ROOT / "README.md"]
ALSO = [ROOT / "CONTRIBUTING.md", ROOT / "Makefile", ROOT / "pyproject.toml"]  # name paths, too


def name_of(path):
    return path.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def blocks(text, language):
    """The code blocks in one language, README's and the docs' own way of fencing."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


# --- what is made from the code ----------------------------------------------------------------------------------


def test_generated_parts_are_fresh():
    assert generate.stale(write=False) == [], "run `make generate`"


def test_staleness_is_noticed():
    text = "<!-- made: ops-table -->\nold\n<!-- end -->"
    assert generate.refreshed(text) != text
    with pytest.raises(LookupError, match="no part 'nothing'; it has Pictures, main"):
        generate.refreshed("<!-- made: example-plain_pytorch-nothing -->\n<!-- end -->")


def test_pictures_are_fresh():
    assert pictures.stale(write=False) == [], "run `make generate`"
    assert {path.stem for path in pictures.FOLDER.iterdir()} == set(pictures.PICTURES)
    assert sum(path.stat().st_size for path in pictures.FOLDER.iterdir()) < 600_000


def test_a_changed_picture_is_noticed():
    def drawn(level, words="boot"):
        canvas = pictures.Canvas(50, 50, "a boot")
        canvas.tile(0, 0, torch.full((3, 4, 4), level, dtype=torch.uint8), 20)
        canvas.text(0, 40, words)
        return canvas.svg()

    assert pictures.same(drawn(100), drawn(102))
    assert not pictures.same(drawn(100), drawn(103))
    assert not pictures.same(drawn(100), drawn(100, "shoe"))


def test_the_picture_of_the_readme_is_fresh():
    drawn, kept = readme.draw(), Image.open(readme.PICTURE)
    assert readme.same(drawn, kept), "run `make generate`"
    assert readme.PICTURE.stat().st_size < 400_000
    x = readme.places()[3]
    drawn.paste(drawn.crop((0, readme.HEAD, 96, readme.HEAD + 96)), (x, readme.HEAD))
    assert not readme.same(drawn, kept)  # one tile of thirty


def test_the_summary_in_the_readme_is_that_of_the_recorded_search():
    """The numbers of the recording; the words are those of the code as it is now."""
    recorded = readme.recorded_result()
    kept = json.loads((readme.FOLDER / "first" / "result.json").read_text(encoding="utf-8"))
    assert recorded.chosen == kept["chosen"]
    assert [[row.label, row.trainings] for row in recorded.table] == [
        [row["label"], row["trainings"]] for row in kept["table"]
    ]
    for row, old in zip(recorded.table, kept["table"], strict=True):
        assert (row.error, row.loss) == pytest.approx((old["error"], old["loss"]), abs=1e-3)
        assert (row.better or 0) == pytest.approx(old["better"] or 0, abs=0.02)


@pytest.mark.expensive
def test_the_recorded_search_is_what_the_code_decides_today(fasteraa, monkeypatch, tmp_path):
    """The same command with the recorded trainings: who takes part, who is eliminated, how probable it is."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(readme.FOLDER / "first" / "race", "runs/first/race")
    code, _, err = fasteraa(*shlex.split(readme.recorded()["command"])[1:])
    assert code == 0, err
    old, new = (json.loads((f / "result.json").read_text()) for f in (readme.FOLDER / "first", Path("runs/first")))
    found = [(row["label"], row["trainings"], pytest.approx(row["better"] or 0, abs=0.03)) for row in new["table"]]
    assert [(row["label"], row["trainings"], row["better"] or 0) for row in old["table"]] == found, (
        "record the search of the README again: tools/readme.py says how"
    )


def test_the_photograph_of_the_report_is_fresh():
    """By the page itself, without its pictures: a browser is not needed to know that."""
    assert screenshot.DIGEST.read_text().strip() == screenshot.digest_now(), (
        "run `python tools/screenshot.py` (Chromium)"
    )
    page = 'made by fasteraa 1.2 <img src="data:image/png;base64,AA"><polyline points="1,2"/>'
    assert screenshot.digest(page) == screenshot.digest(page.replace("AA", "BB").replace("1.2", "1.3"))
    assert screenshot.digest(page) != screenshot.digest(page.replace("1,2", "1,3"))
    with Image.open(screenshot.PICTURE) as picture:
        assert picture.size == (1000, 1114)
    assert "docs/readme/report.jpg" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_sets_are_counted_on_the_seeds_that_both_policies_have():
    ours, none = {"0": 2.0, "1": 3.0, "2": 9.0}, {"0": 2.5, "1": 3.0, "2": 9.0}
    sets = [[ours, none, {"0": 1.0}], [none, none, none], [{"0": 4.0}, none, {"0": 4.0}]]
    assert set_counts.counts(sets, 1) == (1, 1, 1)
    assert set_counts.counts(sets, 2) == (0, 2, 1)


def test_the_first_sentences_of_the_results_are_their_counts():
    rows = [[cell.strip() for cell in line.split("|")[2:4]] for line in set_counts.table().splitlines()[2:5]]
    none, trivial = ([list(map(int, row[column].split(" / "))) for row in rows] for column in (0, 1))
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    sets, better, against = sum(map(sum, none)), sum(row[0] for row in none), sum(row[0] for row in trivial)
    assert f"on {sets} sets, the policy of a search is better than no augmentation on {better}." in text
    assert f"better than TrivialAugment on {against} of the {sets}" in text
    assert sum(row[2] for row in none) == 0
    cores = set_counts.table().splitlines()[5].split("|")[2:4]  # the third set on two cores
    wins = [
        sum(row[0] for row in rows[:2]) + int(cell.split(" / ")[0])
        for rows, cell in zip((none, trivial), cores, strict=True)
    ]
    assert f"augmentation on {wins[0]} of the {sets}, and better than TrivialAugment on {wins[1]}." in text


def test_a_public_name_without_words_is_an_error():
    def find(where, *, deep: bool = False) -> int: ...

    room = SimpleNamespace(__name__="fasteraa.room", __doc__="A room.", __all__=["find"], find=find)
    with pytest.raises(LookupError, match="find is public and has no words"):
        list(reference._module(room, {}))
    find.__doc__ = "Look for it."
    text = "\n".join(reference._module(room, {}))
    assert "### `fasteraa.room.find`" in text
    assert "find(where, *, deep: bool = False) -> int" in text


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs" / "python.md").read_text()
    for module in reference.public_modules():
        for name in module.__all__:
            assert name == "__version__" or f"### `{module.__name__}.{name}`" in text


WORDS = re.compile(
    r"\b(anew|mend(s|ed|ing)?|reckon\w*|foret(ell\w*|old)|in the mean|held[ -]back|(go(es|ing)?|went) on"
    r"|(c[ao]me|coming) to nothing|of our own|house numbers|clothes|to be had|the like again|what calculates a step"
    r"|another's loop|weighted, boldly|went out earlier|whom|tells|(is|are|was|were|be|been) told|told otherwise"
    r"|meets|guesse[sd]|(is|are|lies|was|were) (ahead|behind)|a wide one)\b",
    re.IGNORECASE,
)
OLD_LABELS = {"general or any one"}  # names of policies in files of version 0.1: no words for a page


def misleading_words(text):
    return [match[0] for match in WORDS.finditer(" ".join(text.split()))]


def words_of_source(path):
    """Comments, docstrings and messages of Python, without names in backticks and braces; of other files all."""
    if path.suffix != ".py":
        return path.read_text(encoding="utf-8")
    said = []
    with path.open("rb") as stream:
        for token in tokenize.tokenize(stream.readline):
            name = tokenize.tok_name[token.type]
            if name in ("COMMENT", "STRING") or name.startswith("FSTRING"):
                said.append(re.sub(r"`[^`]*`|\{[^{}]*\}", "x", token.string).strip("#\"' "))
    return " ".join(said)


def test_the_words_of_pages_messages_and_docstrings_are_the_usual_ones():
    """again, fix, estimate, predict, on average, held out, continues, diverged, shows, is augmented by."""
    written = {name_of(path): path.read_text(encoding="utf-8") for path in [*PAGES, *ALSO, ROOT / "CHANGELOG.md"]}
    for path in (ROOT / "src").rglob("*"):
        if path.suffix in (".py", ".html", ".js"):
            written[name_of(path)] = words_of_source(path)
    assert {path: found for path, text in written.items() if (found := misleading_words(text))} == {}
    pages = [path for path, text in written.items() if path.endswith(".md") and any(old in text for old in OLD_LABELS)]
    assert pages == []


HARD_TO_READ = re.compile(r"\b(of which|for want of|(a|our) neighbour of)\b", re.IGNORECASE)
REFERENCE = ("cli.md", "python.md", "extend.md", "finetune.md", "how-it-works.md")  # with docstrings and formulas


def test_sentences_of_pages_name_what_they_are_about():
    written = {name_of(page): page.read_text(encoding="utf-8") for page in PAGES if page.name not in REFERENCE}
    found = {page: HARD_TO_READ.findall(" ".join(text.split())) for page, text in written.items()}
    assert {page: words for page, words in found.items() if words} == {}
    assert HARD_TO_READ.search("five policies, of which two are mild")


def test_misleading_words_are_noticed(tmp_path):
    assert misleading_words("It was held\nback, and anew we recommend to mend it") == ["held back", "anew", "mend"]
    assert misleading_words("An image meets what the table tells whom; it went on") == [
        "meets",
        "tells",
        "whom",
        "went on",
    ]
    path = tmp_path / "source.py"
    path.write_text('meets = 1  # it tells\ndef f():\n    """Is\n    told."""\n    return f"guesses {meets}"\n')
    assert misleading_words(words_of_source(path)) == ["tells", "Is told", "guesses"]


USUAL, LONG, LONGEST = 20, 34, 36  # words of the median sentence of a page, of nine in ten, and of all


def sentence_lengths(text):
    """Words of each sentence in running text: no code, tables, headings; a list's items count for themselves."""
    prose = re.sub(r"^(`{3,})[^\n]*\n.*?^\1[ \t]*$|<!--.*?-->", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    lengths = []
    for part in re.split(r"\n\s*\n|\n(?=[-*|#] |\d+\. |\|)", prose):
        words = re.sub(r"`[^`]*`", "x", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(part.split())))
        if words and not words.startswith(("|", "#", "![")):
            sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z†*`x\[])", words)
            lengths += [len(re.findall(r"[A-Za-z][\w'-]*", sentence)) for sentence in sentences]
    return sorted(length for length in lengths if length > 2)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ("cli.md", "python.md")], ids=name_of)
def test_sentences_are_short(page):
    """Those of cli.md and python.md are docstrings."""
    lengths = sentence_lengths(page.read_text(encoding="utf-8"))
    median, ninth = lengths[len(lengths) // 2], lengths[int(0.9 * len(lengths))]
    assert (median <= USUAL, ninth <= LONG) == (True, True), f"median {median} words, nine in ten up to {ninth}"
    assert lengths[-1] <= LONGEST


def test_a_long_sentence_is_counted():
    text = "# A heading that is long\n\nOne two three. Four five six seven.\n\n```sh\na b c d e\n```\n| a b c d |\n"
    assert sentence_lengths(text) == [3, 4]
    assert sentence_lengths("It is " + "very " * 40 + "long.") == [43]
    assert sentence_lengths("One two three: Four; five six seven.") == [7]


# --- links and nav -------------------------------------------------------------------------------------------------


def broken_links(page, text):
    """Links to nothing, to a folder (a site has no page for it), or to a heading that a forge or the site lacks."""
    for link in site.links(text):
        path = (page.parent / link.file).resolve() if link.file else page
        if link.file and not path.is_file():
            yield link.file
        elif link.anchor:
            headings = site.headings(text if path == page else path.read_text(encoding="utf-8"))
            for anchor in (site.forge_anchor, site.site_anchor):
                if [anchor(heading) for heading in headings].count(link.anchor) != 1:
                    yield f"{link.file}#{link.anchor}"
                    break


@every_page
def test_links_lead_somewhere(page):
    assert list(broken_links(page, page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](search.md) [b](search.md#sources) [c](https://example.org/x.md) `[d](gone.md)`", []),
        ("```python\n[a](gone.md)\n```\n[b](gone.md)", ["gone.md"]),
        ("[a](../examples)", ["../examples"]),
        ("[a](search.md#how-much)", ["search.md#how-much"]),
        ("# One\n[a](#one) [b](#two)", ["#two"]),
        ("# One -- two\n[a](#one----two)", ["#one----two"]),  # the site makes one dash of them
        ("# One\n# One\n[a](#one)", ["#one"]),
        ("![a](pictures/gone.svg)", ["pictures/gone.svg"]),
    ],
)
def test_a_broken_link_is_noticed(text, broken):
    assert list(broken_links(ROOT / "docs" / "page.md", text)) == broken


SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def nav():
    return list(site.nav_entries(SETTINGS["nav"]))


def linked_results():
    """The pages that docs/results.md links to: a menu of all of them would be too long."""
    page = ROOT / "docs" / "results.md"
    targets = [(page.parent / link.file).resolve() for link in site.links(page.read_text(encoding="utf-8"))]
    return {site.place(target).as_posix() for target in targets} - {"results.md"}


def test_every_page_is_in_the_nav_once_or_linked_from_the_results():
    pages, entries = {site.place(page).as_posix() for page in site.pages()}, nav()
    assert len(entries) == len(set(entries))
    assert set(entries) <= pages
    absent = pages - set(entries)
    assert absent <= linked_results(), "see nav in mkdocs.yml"
    assert all(page.startswith("results/") or page == "benchmarks.md" for page in absent)


def test_a_menu_of_results_is_short():
    (measured,) = [section["Measured"] for section in SETTINGS["nav"] if "Measured" in section]
    assert len(list(site.nav_entries(measured))) <= 5


def test_nav_entries_are_found_in_sections():
    assert list(site.nav_entries(["a.md", {"B": "b.md"}, {"C": [{"D": "d.md"}, "e.md"]}])) == [
        "a.md",
        "b.md",
        "d.md",
        "e.md",
    ]


def test_every_picture_is_shown():
    shown = {(page.parent / link.file).resolve() for page in PAGES for link in site.links(page.read_text())}
    assert set(pictures.FOLDER.iterdir()) <= shown


def test_the_gathered_pages_need_nothing_outside(tmp_path):
    site.gather(tmp_path)
    gathered = list(tmp_path.rglob("*.md"))
    assert {path.relative_to(tmp_path).as_posix() for path in gathered} == {
        site.place(page).as_posix() for page in site.pages()
    }
    for page in gathered:
        text = page.read_text(encoding="utf-8")
        assert list(broken_links(page, text)) == []
        for link in site.links(text):
            assert (page.parent / link.file).resolve().is_relative_to(tmp_path)
    assert (tmp_path / "examples" / "timm_training.py").exists()
    assert "](results/search-h200/README.md)" in (tmp_path / "results.md").read_text()
    assert "](../../settings.md#" in (tmp_path / "results" / "search-h200" / "README.md").read_text()


def test_the_settings_of_the_site_name_files_that_are_there():
    assert all((ROOT / "docs" / name).exists() for name in SETTINGS["extra_css"])
    assert ROOT / SETTINGS["docs_dir"] == site.GATHERED


# --- code and commands ---------------------------------------------------------------------------------------------


@every_page
def test_python_in_the_pages_is_python(page):
    if page.name != "python.md":  # signatures
        for code in blocks(page.read_text(encoding="utf-8"), "python"):
            ast.parse(code)


def commands(text):
    """`fasteraa ...` and `make ...` in shell blocks and in running text, a line each."""
    shell = "".join(blocks(text, "sh")).replace("\\\n", "")
    lines = [line.strip().removeprefix(".venv/bin/") for line in shell.splitlines()]
    lines += [" ".join(code.split()) for code in re.findall(r"`((?:fasteraa|make) [^`]+)`", site._without_blocks(text))]
    return [line for line in lines if line.startswith(("fasteraa ", "make "))]


@cache
def root_command():
    return typer.main.get_command(app)


def wrong_words(line):
    """Commands, flags and targets that do not exist."""
    words = shlex.split(line, comments=True)
    words = words[: words.index("--")] if "--" in words else words  # what follows is another's command
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        return [word for word in words[1:] if "=" not in word and word not in targets]
    command, rest = root_command(), words[1:]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return [] if rest[0].isupper() else [rest[0]]
        command, rest = command.commands[rest[0]], rest[1:]
    flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    found = [word.partition("=")[0] for word in rest if word.startswith("-")]
    return [flag for flag in found if flag not in flags | {"--help"}]


@every_page
def test_documented_commands_and_flags_exist(page):
    for line in commands(page.read_text(encoding="utf-8")):
        assert wrong_words(line) == [], line


def test_wrong_commands_are_noticed():
    shell = "fasteraa serch x/ \\\n  --out y  # ok\nfasteraa search --epohcs 3\nmake demos\n"
    text = f"```sh\n{shell}```\n`fasteraa data chek`"
    assert [wrong_words(line) for line in commands(text)] == [["serch"], ["--epohcs"], ["demos"], ["chek"]]
    assert wrong_words("fasteraa COMMAND --help") == []
    assert wrong_words("fasteraa search photos/ --no-flip --set critic_norm=batch -o run") == []


def test_documented_scripts_exist():
    for page in PAGES:
        for script in re.findall(r"python3? ((?:tools|examples)/\w+\.py)", page.read_text(encoding="utf-8")):
            assert (ROOT / script).is_file(), f"{page.name}: {script}"


ROOMS = sorted(path.name for path in (ROOT / "src" / "fasteraa").iterdir() if path.is_dir())
TOPS = "src|tests|tools|examples|docs|results"
# a file or folder of this repository, or a file of a room without its beginning: `train/runner/local.py`
PATH = re.compile(
    rf"(?<![\w./-])((?:{TOPS})/[\w./-]*\w|(?:fasteraa|{'|'.join(ROOMS)})/[\w./-]*\w\.(?:py|html|css|npz))"
)
MODULE = re.compile(r"`(fasteraa(?:\.\w+)+)")


def absent_paths(text):
    homes = (ROOT, ROOT / "src", ROOT / "src" / "fasteraa")
    named = {match[1] for match in PATH.finditer(text) if not re.search(r"\b[A-Z]{3,}\b", Path(match[1]).stem)}
    return sorted(path for path in named if not any((home / path).exists() for home in homes))


def absent_names(text):
    return sorted({match[1] for match in MODULE.finditer(text) if not resolves(match[1])})


@cache
def resolves(name):
    """Whether it is a module, something in one, or a group of entry points."""
    if name in {METHODS.group, RUNNERS.group, SOURCES.group}:
        return True
    module, _, attribute = name.rpartition(".")
    if importlib.util.find_spec(module) is None:
        return False
    inside = importlib.import_module(module)
    return hasattr(inside, attribute) or (hasattr(inside, "__path__") and importlib.util.find_spec(name) is not None)


def test_paths_in_pages_and_comments_lead_somewhere():
    sources = [path for folder in ("src", "tools", "examples") for path in (ROOT / folder).rglob("*.py")]
    absent = {name_of(path): absent_paths(path.read_text(encoding="utf-8")) for path in [*PAGES, *ALSO, *sources]}
    assert {page: paths for page, paths in absent.items() if paths} == {}


def test_names_of_the_package_in_pages_exist():
    absent = {name_of(path): absent_names(path.read_text(encoding="utf-8")) for path in [*PAGES, *ALSO]}
    assert {page: names for page, names in absent.items() if names} == {}


def test_absent_paths_and_names_are_noticed():
    text = "`tests/gone.py`, ops/tone.py, train/runner/gone.py, `export/NAME.py`, runs/a/policy.json, src/fasteraa/ops"
    assert absent_paths(text) == ["tests/gone.py", "train/runner/gone.py"]
    assert absent_names(
        "`fasteraa.search(`, `fasteraa.ops.tone.gone`, `fasteraa.testing.runners`, `fasteraa.gone`"
    ) == [
        "fasteraa.gone",
        "fasteraa.ops.tone.gone",
    ]


SMALL = {  # what makes a command of the quick start a matter of seconds
    "search": ["--epochs", "1", "--batch-size", "8", "--subset", "40", "--size", "16", "--no-race"],
    "compare": ["--epochs", "1", "--subset", "40", "--seeds", "1", "--jobs", "1", "--held-out", "0.5"],
}


RACE = ["--race-trainings", "3", "--train-epochs", "1", "--jobs", "1"]
COMPARED = ["--epochs", "1", "--jobs", "1", "--size", "16"]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of class folders in the folder where the test then stands."""
    rng = np.random.default_rng(0)
    for number in range(40):
        place = tmp_path / "photos" / ("cats", "dogs")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(place / f"{number}.png")
    monkeypatch.chdir(tmp_path)


def test_the_quick_start_works(photos, fasteraa):
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    shutil.copytree("photos", "digits")
    lines = [line for block in blocks(text, "sh") for line in block.splitlines() if line.startswith("fasteraa ")]
    assert len(lines) >= 9
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        code, _, err = fasteraa(*words, *SMALL.get(words[0], []))
        assert code == 0, f"{line}: {err}"
        if "--out" in words:
            assert Path(words[words.index("--out") + 1]).exists(), line
    for code in blocks(text, "python"):
        names = {}
        exec(code, names)
        assert names["augmented"].shape == names["images"].shape


def test_the_tutorial_works(photos, fasteraa, monkeypatch):
    """Every command, then the training with timm, with a small network and two epochs."""
    pytest.importorskip("timm")
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    lines = [line for block in blocks(text, "sh") for line in block.splitlines() if line.startswith("fasteraa ")]
    assert [line.split()[1] for line in lines] == ["data", "search", "show", "report", "compare"]
    for line in lines:
        words = shlex.split(line)[1:]
        small = {"search": ["--size", "16", "--methods", "published", *RACE], "compare": COMPARED}.get(words[0], [])
        code, out, err = fasteraa(*words, *small)
        assert code == 0, f"{line}: {err}"
        if words[0] == "search":
            assert "Use " in out
        assert "flatters" not in out  # the search left out what the comparison measures on
    assert Path("runs/photos/report.html").exists()
    assert json.loads(Path("runs/measured/comparison.json").read_text())["rows"]
    (code,) = blocks(text, "python")
    settings = 'NETWORK, SIZE, EPOCHS = "resnet18", 64, 100'
    assert settings in code
    names = {}
    exec(code.replace(settings, 'NETWORK, SIZE, EPOCHS = "test_resnet", 32, 2'), names)
    assert -1 <= names["gain"] <= 1
    assert len(names["held_out"]) == 10
    assert not set(names["held_out"]) & set(names["training"])


def test_the_table_of_methods_has_every_method():
    text = (ROOT / "docs" / "which-command.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| method \| what it proposes \|\n(.*?)\n\n", text, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^\| `([\w-]+)`", table, flags=re.MULTILINE) == list(METHODS.builtin)


def test_the_table_of_policies_has_every_name():
    text = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| name \| what it is \|\n(.*?)\n\n", text, flags=re.DOTALL | re.MULTILINE)
    first = " ".join(line.split("|")[1] for line in table.splitlines())
    assert set(re.findall(r"`([\w-]+)", first)) == set(NAMES)


def test_commands_are_listed_in_the_order_of_help():
    text = (ROOT / "docs" / "which-command.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\|[^|]*\| `fasteraa ([\w-]+)", text, flags=re.MULTILINE)
    assert list(dict.fromkeys(listed)) == list(_ORDER)


# --- the guide to extending ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guide():
    """The code of a section of docs/extend.md, run."""
    parts = re.split(r"^## ", (ROOT / "docs" / "extend.md").read_text(encoding="utf-8"), flags=re.MULTILINE)

    def run(section):
        (text,) = [part for part in parts if part.startswith(section + "\n")]
        names = {}
        for code in blocks(text, "python"):
            exec(code, names)
        return SimpleNamespace(**names)

    return run


def test_the_operation_of_the_guide_passes_every_check(guide):
    before = set(OPS)
    try:
        row = guide("An operation").gamma
        assert set(OPS) - before == {"gamma"}
        assert parity(row, magnitudes=5, sizes=((9, 7),)).differing == 0
        for check in CHECKS:
            check(row)
    finally:
        OPS.pop("gamma", None)


def test_the_exporter_of_the_guide_works(guide, tmp_path):
    exporter, policy = guide("An exporter"), Policy.named("trivialaugment-wide")
    image = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    assert exporter.render(policy)(image).shape == image.shape
    names = {}
    exec(exporter.text(policy, tmp_path / "x.py"), names)
    assert names["augment"](image).shape == image.shape


def test_the_network_of_the_guide_makes_a_critic(guide):
    critic = Critic(guide("A network").Tiny(3), 3)
    scores, logits = critic(torch.rand(4, 3, 16, 16))
    assert (scores.shape, logits.shape) == ((4,), (4, 3))
    penalty_gradient(critic, torch.rand(4, 3, 16, 16), 10.0)
    assert all(parameter.grad is not None for parameter in critic.head.parameters() if parameter.ndim > 1)


def test_the_search_method_of_the_guide_passes_every_check(guide):
    check_method(guide("A search method").Drawn)
    source = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8").split("class Drawn")[1].split("```")[0]
    assert len(source.splitlines()) < 40


def test_the_runner_of_the_guide_passes_every_check(guide, monkeypatch, tmp_path):
    """Also where another package brings it: made by a race and by a comparison."""
    runner = guide("A runner").InTurn
    monkeypatch.setattr(local, "_MEASURED_S", 0.0)
    check_runner(runner)
    mine = SimpleNamespace(name="in-turn", load=lambda: runner)
    monkeypatch.setattr(registry, "entry_points", lambda group: [mine] if group == "fasteraa.runners" else [])
    source = (np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), dtype=np.uint8), np.arange(24) % 2)
    where = {"engine": "in-turn", "address": "queue:7000", "device": "cpu"}
    settings = fasteraa.RaceConfig(trainings=6, network="small", epochs=1)
    assert {row.label for row in fasteraa.race("none,uniform", source, race=settings, **where).table} == {
        "none",
        "uniform",
    }
    train = {"epochs": 1, "batch_size": 8}
    compared = fasteraa.compare(
        source, "none", out=tmp_path, seeds=1, network="small", train=train, command="fasteraa compare", **where
    )
    assert compared.missing == 0
    with pytest.raises(ConfigError, match="--devices is for --engine local, got --engine in-turn"):
        fasteraa.compare(source, "none", out=tmp_path, devices="0", **where)


def test_the_data_source_of_the_guide_passes_every_check(guide, tmp_path):
    for number, name in enumerate(("train/cat_1.png", "train/dog_1.png", "train/cat_2.png", "test/dog_2.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / name)
    opened = partial(guide("A data source").open_prefixed, str(tmp_path), None, False)
    check_source(opened)
    listing = opened().listing("train")
    assert (listing.classes, listing.labels.tolist()) == (("cat", "dog"), [0, 0, 1])


def test_another_loss_of_the_guide_is_learned(guide):
    methods = guide("Another loss")
    data = load(subset=20)
    batches = [(data.images / 255, data.labels)] * 8
    settings = {"sub_policies": 1, "operation_count": 1, "ops": ("brightness",)}
    torch.manual_seed(0)
    darker = methods.learn(batches, lambda images, labels: images.var(), **settings)
    torch.manual_seed(0)
    start = methods.learn([], None, **settings)
    assert darker.provenance == {"method": "learn"}
    assert darker.hash != start.hash
