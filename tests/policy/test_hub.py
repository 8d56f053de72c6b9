"""Sharing: a folder there and back, and huggingface_hub's own client with a hub that speaks HTTP on this machine."""

import base64
import hashlib
import json
import logging
import re
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from PIL import Image

from fasteraa.errors import PolicyError
from fasteraa.policy import Choice, Policy, SubPolicy
from fasteraa.policy.hub import pull
from fasteraa.policy.hub_card import card
from fasteraa.policy.resolve import load_policy

TOKEN = "hf_" + "s3cret" * 6
FOUND = {
    "method": "Faster AutoAugment",
    "data": {"name": "photos|mine", "images": 240, "classes": 3, "size": [32, 48], "fingerprint": "f"},
    "config": {"seed": 7, "batch_size": 64},
    "backbone": "wrn-40-2",
    "epochs": 20,
    "finished": True,
    "seconds": 12.5,
    "device": "a GPU | two",
    "versions": {"fasteraa": "0.1.0"},
    "calibration": {
        "effects": {"of": {"invert": [12.34, 2.0], "rotate": [-3.0, 1.25]}},
        "chosen": "found x2",
        "sentence": "Chosen: found x2, with 20.0% errors.",
        "table": [
            {"candidate": "found x2", "hash": "h", "errors": [19.0, 21.0], "losses": [0.5, 0.6], "training_loss": 0.61},
            {"candidate": "none", "hash": "h", "errors": [26.25], "training_loss": 0.3333},
            {
                "candidate": "uniform",
                "hash": "h",
                "errors": [50.0],
                "training_loss": None,
                "diverged": "lost in epoch 1",
            },
        ],
    },
}


@pytest.fixture
def policy():
    sub = SubPolicy(((Choice("rotate", 0.5, 0.4),), (Choice("flip", 0.3),)))
    return Policy((sub, SubPolicy(((Choice("invert", 0.2),),))), name="found on photos", provenance=FOUND)


@pytest.fixture
def picture(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "sheet.png")
    return tmp_path / "sheet.png"


def metadata(text):
    """What the hub reads: YAML between two lines of dashes at the very beginning."""
    before, front, rest = text.split("---\n", 2)
    assert before == ""
    return yaml.safe_load(front), rest


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as a push and a pull use; repositories are dicts of files."""

    def reply(self, status, content=b"", **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        state = self.server.state
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.reply(401, {"error": "Invalid credentials"})
        if self.path == "/api/validate-yaml":
            front, _ = metadata(json.loads(body)["content"])
            errors = [] if isinstance(front["tags"], list) else [{"message": "tags must be a list"}]
            return self.reply(200, {"errors": errors, "warnings": []})
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            state["visibility"][name] = wanted.get("visibility") or wanted.get("private")
            fresh = name not in state["repos"]
            state["repos"].setdefault(name, {})
            return self.reply(200 if fresh else 409, {"url": f"{state['url']}/{name}", "name": name})
        _, _, _, user, name, action, _ = self.path.split("/")
        files = state["repos"][f"{user}/{name}"]
        if action == "preupload":
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return self.reply(200, {"files": modes})
        assert action == "commit"
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "header":
                state["messages"].append(line["value"]["summary"])
            else:
                assert line["value"]["encoding"] == "base64"
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        oid = state["commits"][f"{user}/{name}"] = hashlib.sha1(body).hexdigest()
        return self.reply(
            200, {"success": True, "commitOid": oid, "commitUrl": f"{state['url']}/{user}/{name}/commit/{oid}"}
        )

    def do_GET(self):
        state = self.server.state
        asked = re.fullmatch(r"/(\w+/\w+)/resolve/main/([\w.]+)", self.path)
        if asked is None or asked[1] not in state["repos"]:
            return self.reply(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        commit = state["commits"].get(asked[1], "0" * 40)
        content = state["repos"][asked[1]].get(asked[2])
        if content is None:
            return self.reply(404, b"Entry not found", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        return self.reply(200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=commit)

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    url = f"http://127.0.0.1:{server.server_port}"
    server.state = {"url": url, "repos": {}, "visibility": {}, "commits": {}, "messages": []}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"  # made from the address when the package was imported
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # as other tests have it
    yield server.state
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_folder_there_and_back(policy, picture, tmp_path):
    folder = tmp_path / "shared"
    policy.save_pretrained(folder, license="cc0-1.0", tags=["plants"], preview=picture)
    assert {path.name for path in folder.iterdir()} == {"policy.json", "README.md", "preview.png"}
    again = Policy.from_hub(folder)
    assert (again, again.provenance) == (policy, policy.provenance)
    assert (folder / "preview.png").read_bytes() == picture.read_bytes()
    (folder / "policy.json").write_text((folder / "policy.json").read_text().replace("0.5", "0.6"))
    with pytest.raises(PolicyError, match="does not match its hash"):
        Policy.from_hub(folder)
    with pytest.raises(PolicyError, match="could not be read"):
        Policy.from_hub(tmp_path)  # a folder that holds none


def test_the_card(policy, tmp_path):
    from huggingface_hub import ModelCard

    text = card(policy, "joe/photos", license="cc0-1.0", tags=["plants"], preview=True)
    read = ModelCard(text)  # as the hub's own library understands it
    assert (read.data.library_name, read.data.license) == ("fasteraa", "cc0-1.0")
    assert {"data-augmentation", "fasteraa", "plants"} <= set(read.data.tags)
    for line in (
        "# found on photos",
        'policy = fasteraa.Policy.from_hub("joe/photos")',
        "  1. (50%) rotate(50%, ±12.0°), then flip(30%)",
        "| critic | wrn-40-2 |",
        "| seed | 7 |",
        "| device | a GPU \\| two |",
        "| found x2 | 20.0 | 0.550 | 2 | 0.610 |",
        "| none | 26.2 |  | 1 | 0.333 |",
        "| uniform | 50.0 |  | 1 | lost in epoch 1 |",
        "Chosen: found x2, with 20.0% errors.",
        "| rotate | -3.0 | 2.5 |",
        "| invert | +12.3 | 4.0 |",
        "- It mirrors images: not for text, digits and whatever else has a left and a right.",
    ):
        assert line in read.content.splitlines(), line
    assert "on photos|mine (240 images of 3 classes, 32x48). It has 2 sub-policies of up to 2 stages" in text
    assert policy.hash in text
    assert "(preview.png)" in text


def test_the_card_of_a_policy_that_a_race_chose(policy):
    race = {
        "sentence": "Use uniform-half.",
        "effects": {"trainings": 54, "of": {"rotate": [-3.0, 1.25]}},
        "table": [
            {"candidate": "uniform-half", "errors": [19.0, 21.0], "losses": [0.5, 0.6], "training_loss": 0.61},
            {"candidate": "uniform", "errors": [], "losses": [], "training_loss": None, "failed": "lost in epoch 1"},
            {"candidate": "general", "errors": [20.0], "losses": [0.5], "training_loss": None},
        ],
    }
    lines = card(replace(policy, provenance={"method": "published", "race": race})).splitlines()
    for line in (
        "| uniform-half | 20.0 | 0.550 | 2 | 0.610 |",
        "| uniform |  |  | 0 | lost in epoch 1 |",
        "| general | 20.0 | 0.500 | 1 |  |",
        "Use uniform-half.",
        "| rotate | -3.0 | 2.5 |",
    ):
        assert line in lines, line


def test_the_code_on_the_card_runs(policy, tmp_path, monkeypatch):
    policy.save_pretrained(tmp_path / "joe" / "photos", repo_id="joe/photos")
    monkeypatch.chdir(tmp_path)
    code = (tmp_path / "joe" / "photos" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    names = {}
    exec(code, names)
    assert names["policy"] == policy
    assert names["transform"](Image.new("RGB", (8, 8))).size == (8, 8)


def test_the_card_of_a_search_by_masks(policy):
    data = {"name": "scenes", "task": "segmentation", "images": 24, "classes": 11, "size": [32, 32]}
    text = card(replace(policy, provenance={**policy.provenance, "data": data}), "joe/scenes")
    assert "on scenes (24 images with masks of 11 classes, 32x32)" in text
    assert "mask_fill=255)  # a torchvision v2 transform for Pillow and uint8 images and tv_tensors.Mask" in text


def test_a_card_of_little(tmp_path):
    text = card(Policy.named("none"))
    front, rest = metadata(text)
    assert "license" not in front
    assert "1 sub-policy of up to 0 stages, with no operation at all" in rest
    assert "## The search" not in rest
    assert "preview" not in rest
    odd = Policy.named("uniform")
    for origin in (
        {"method": "x", "data": 3, "config": [], "calibration": {"table": [{"candidate": 1}]}},
        {"calibration": {"table": [{"candidate": 1}], "effects": {"of": {"invert": 3}}}},
        {"data": {}},
    ):
        text = card(Policy(odd.sub_policies, name='a\n---\nb: "c"', provenance=origin), license='m"it\nx: 1')
        front, _ = metadata(text)
        assert front["license"] == 'm"it\nx: 1'
        assert '\n# a --- b: "c"\n' in text
        assert "## How it did" not in text
    assert "the last ones it has seen" in text
    assert "policy.transform()" in text


def test_push_and_pull(hub, policy, picture):
    where = policy.push_to_hub("joe/photos", private=True, license="mit", preview=picture)
    assert where.startswith(f"{hub['url']}/joe/photos/commit/")
    files = hub["repos"]["joe/photos"]
    assert set(files) == {"policy.json", "README.md", "preview.png"}
    assert files["policy.json"].decode() == policy.to_json()
    assert files["preview.png"] == picture.read_bytes()
    front, text = metadata(files["README.md"].decode())
    assert front["license"] == "mit"
    assert 'from_hub("joe/photos")' in text
    assert hub["visibility"]["joe/photos"] in ("private", True)
    assert hub["messages"] == [f"found on photos, {policy.hash[:19]}"]
    assert TOKEN not in str(files)

    assert Policy.from_hub("joe/photos") == policy
    assert load_policy("hf:joe/photos") == policy
    assert load_policy("hf:joe/photos@main") == policy
    policy.with_strength(passes=2).push_to_hub("joe/photos", message="stronger")
    assert hub["messages"][-1] == "stronger"
    assert Policy.from_hub("joe/photos").strength.most == 2


def test_what_was_fetched_is_checked(hub):
    hub["repos"]["joe/bad"] = {"policy.json": b'{"format": "fasteraa-policy", "version": 1, "sub_policies": []}'}
    with pytest.raises(PolicyError, match="must hold a sub-policy with a positive weight"):
        Policy.from_hub("joe/bad")
    hub["repos"]["joe/pickle"] = {"policy.json": b"\x80\x04\x95cposix\nsystem\n"}
    with pytest.raises(PolicyError, match="is not text in UTF-8"):
        Policy.from_hub("joe/pickle")


def test_commands(hub, fasteraa, policy, picture, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    policy.save(run / "policy.json")
    (run / "preview.png").write_bytes(picture.read_bytes())
    code, said, error = fasteraa("hub", "push", run, "joe/run", "--license", "mit", "--tag", "plants", "--private")
    assert (code, error) == (0, "")
    assert said.startswith(f"{hub['url']}/joe/run/commit/")
    assert set(hub["repos"]["joe/run"]) == {"policy.json", "README.md", "preview.png"}
    assert fasteraa("hub", "card", run, "joe/run", "--license", "mit", "--tag", "plants") == (
        0, hub["repos"]["joe/run"]["README.md"].decode(), "",
    )  # fmt: skip
    code, said, _ = fasteraa("hub", "pull", "joe/run", "--out", tmp_path / "new" / "policy.json")
    assert code == 0
    assert said.startswith(f"{tmp_path / 'new' / 'policy.json'}: found on photos: 2 sub-policies")
    assert Policy.load(tmp_path / "new" / "policy.json") == policy

    (run / "preview.png").unlink()
    assert fasteraa("hub", "push", run, "joe/other")[0] == 0
    assert set(hub["repos"]["joe/other"]) == {"policy.json", "README.md"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pull", "joe/nothing"], "no policy could be fetched from 'joe/nothing'"),
        (["pull", "joe/empty"], "no policy could be fetched from 'joe/empty'"),
        (["pull", "not a name"], "no policy could be fetched from 'not a name': Repo id must"),
        (["push", "nothing", "joe/x"], "no known policy of that name: 'nothing'"),
        (["push", "none", "joe/x/y"], "the policy could not be pushed to 'joe/x/y': Repo id must"),
    ],
)
def test_mistakes(hub, fasteraa, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hub["repos"]["joe/empty"] = {}
    code, said, error = fasteraa("hub", *arguments)
    assert (code, said) == (2, "")
    assert message in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.glob("*.json")) == []


def test_a_wrong_token_is_said_and_not_shown(hub, fasteraa, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "wr0ngs" * 6)
    code, _, error = fasteraa("hub", "push", "none", "joe/x")
    assert code == 2
    assert "the policy could not be pushed to 'joe/x'" in error
    assert "wr0ngs" not in error
    assert hub["repos"] == {}


def test_each_try_of_the_client_is_not_reported(monkeypatch, caplog):
    logger = logging.getLogger("huggingface_hub")
    level = logger.level

    class Unreachable:
        def hf_hub_download(self, *arguments, **keywords):
            logger.warning("Retrying in 2s [Retry 2/5].")
            raise OSError("Name or service not known")

    monkeypatch.setattr("fasteraa.policy.hub._api", lambda endpoint, token: Unreachable())
    with pytest.raises(PolicyError, match="no policy could be fetched from 'me/policy': Name or service not known"):
        pull("me/policy")
    assert not caplog.records
    assert logger.level == level


def test_without_the_package(policy, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: policy.push_to_hub("joe/x"), lambda: Policy.from_hub("joe/x")):
        with pytest.raises(PolicyError, match=r"pip install 'fasteraa\[hub\]'"):
            call()
    policy.save_pretrained(tmp_path / "shared")  # a folder needs nothing
    assert Policy.from_hub(tmp_path / "shared") == policy


def test_sharing_needs_no_torch(policy, tmp_path):
    policy.save_pretrained(tmp_path)
    code = (
        "import sys; sys.modules['torch'] = sys.modules['huggingface_hub'] = None\n"
        "from fasteraa.policy import Policy\n"
        f"Policy.from_hub({str(tmp_path)!r}).save_pretrained({str(tmp_path / 'again')!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "again" / "policy.json").read_bytes() == (tmp_path / "policy.json").read_bytes()
