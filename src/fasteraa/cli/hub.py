"""`fasteraa hub`: policies on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasteraa.cli.app import app
from fasteraa.cli.echo import echo

hub_app = typer.Typer(help="Share policies on the Hugging Face hub.", no_args_is_help=True)
app.add_typer(hub_app, name="hub")

Shared = Annotated[str, typer.Argument(metavar="POLICY", help="A policy file, a run folder, or a name.")]
License = Annotated[str | None, typer.Option("--license", help="As the hub names it, such as cc0-1.0 or mit.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Tag for the card; may be given several times.")]


@hub_app.command("push")
def push_command(
    policy: Shared,
    repo: Annotated[str, typer.Argument(help="USER/NAME; created if it does not exist.")],
    private: Annotated[bool | None, typer.Option(help="Make a new repository private or public.")] = None,
    license_: License = None,
    tag: Tags = None,
    revision: Annotated[str | None, typer.Option(help="The branch to commit to (default: main).")] = None,
    message: Annotated[str | None, typer.Option(help="The message (default: name and hash of the policy).")] = None,
) -> None:
    """Share a policy with a card that explains it. Log in once with `hf auth login`."""
    from fasteraa.policy.resolve import load_policy

    chosen = load_policy(policy)
    where = chosen.push_to_hub(
        repo, private=private, revision=revision, message=message, license=license_, tags=tag or (),
        preview=_preview(policy),
    )  # fmt: skip
    echo(where)


@hub_app.command("pull")
def pull_command(
    repo: Annotated[str, typer.Argument(help="USER/NAME, or a folder that was made for the hub.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The policy file to write.")] = Path("policy.json"),
    revision: Annotated[str | None, typer.Option(help="A branch, a tag or a commit (default: main).")] = None,
) -> None:
    """Fetch a shared policy, check it, and write it as a policy file."""
    from fasteraa.policy.policy import Policy

    policy = Policy.from_hub(repo, revision=revision)
    policy.save(out)
    echo(f"{out}: {policy.describe().splitlines()[0]}")


@hub_app.command("card")
def card_command(
    policy: Shared,
    repo: Annotated[str | None, typer.Argument(help="USER/NAME, for the lines that show how to use it.")] = None,
    license_: License = None,
    tag: Tags = None,
) -> None:
    """Print the card that push would write."""
    from fasteraa.policy.hub_card import card
    from fasteraa.policy.resolve import load_policy

    chosen = load_policy(policy)
    preview = _preview(policy) is not None
    echo(card(chosen, repo, license=license_, tags=tag or (), preview=preview), nl=False)


def _preview(text: str) -> Path | None:
    """The picture in a run folder."""
    picture = Path(text) / "preview.png"
    return picture if picture.is_file() else None
