"""Groups whose trainings ended with a part of a training: what continues them needs no new networks and no new graph.

On a GPU making these takes longer than a part of a few epochs. States are kept in files all the same, so a search that
was killed continues from those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fasteraa.train.device_batches import DeviceFeed

if TYPE_CHECKING:
    from fasteraa.train.group import Group
    from fasteraa.train.training import TrainingRun


class LiveGroups:
    """Of the last generation of parts."""

    def __init__(self) -> None:
        self._groups: list[tuple[str, Group]] = []  # fingerprint of the images

    def keep(self, fingerprint: str, group: Group) -> None:
        """One that was trained to the end of its parts, if others can continue them; earlier generations are let go."""
        self._groups = [(images, each) for images, each in self._groups if each.last >= group.last]
        if group.last < group.members[0].recipe.epochs and _continues(group):
            for member in group.members:
                assert isinstance(member.feed, DeviceFeed)
                member.feed = member.feed.with_policy(member.feed.policy)  # lets go of images that were augmented
            self._groups.append((fingerprint, group))

    def take(self, fingerprint: str, runs: Sequence[TrainingRun]) -> Group | None:
        """The group that these runs continue, ready to train; it is kept no longer. None if there is none."""
        for place, (images, group) in enumerate(self._groups):
            if images == fingerprint and (sources := _sources(group, runs)) is not None:
                del self._groups[place]
                group.follow_on(runs, sources)
                return group
        return None

    def clear(self) -> None:
        """Give back their memory."""
        self._groups = []


def _continues(group: Group) -> bool:
    """Whether its members can train with another policy, and leave a state."""
    return all(isinstance(each.feed, DeviceFeed) and each.part.end is not None for each in group.members)


def _sources(group: Group, runs: Sequence[TrainingRun]) -> list[int] | None:
    """For each run the member that it continues; None if these are not runs that the group can continue."""
    ends = {each.part.end: number for number, each in enumerate(group.members) if each.diverged is None}
    alike = [(each.seed, each.recipe) for each in group.members] == [(each.seed, each.recipe) for each in runs]
    begun = any(each.checkpoint is not None and each.checkpoint.exists() for each in runs)
    begins = [None if each.part is None else each.part.begin for each in runs]
    if not alike or begun or runs[0].epochs[0] != group.last or not all(begin in ends for begin in begins):
        return None
    return [ends[begin] for begin in begins]
