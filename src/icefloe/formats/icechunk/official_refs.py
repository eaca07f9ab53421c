"""What the references of both official versions share: nothing numbers the states of a branch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from icefloe.formats.port import RefDefaults
from icefloe.model import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.formats.port import BranchTip, LiveTip
    from icefloe.model.ids import SnapshotId


class OfficialRefs(RefDefaults, ABC):
    """Branches and tags without numbered states, which are checked when they are created."""

    numbers_moves = False

    @abstractmethod
    def tip(self, branch: str) -> BranchTip | None:
        """Newest state of a branch; None if it never existed."""

    @abstractmethod
    def tips(self) -> dict[str, BranchTip]:
        """Newest states of all branches."""

    @abstractmethod
    def reflog(self, branch: str) -> Iterator[BranchTip]:
        """The states of a branch as far as they are kept, newest first."""

    @abstractmethod
    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> LiveTip:
        """Create a branch."""

    @abstractmethod
    def create_tag(self, name: str, snapshot_id: SnapshotId) -> Callable[[], None]:
        """Create a tag; returns how to undo it."""

    def find_tip(self, branch: str) -> Callable[[], BranchTip | None]:
        """Find the newest state of a branch, and read it in the same request."""
        tip = self.tip(branch)
        return lambda: tip

    def prepare_branch(self, branch: str) -> Callable[[SnapshotId], LiveTip]:
        """Read nothing yet: what a branch depends on is checked when it is created."""
        return lambda snapshot_id: self.create_branch(branch, snapshot_id)

    def prepare_tag(self, name: str) -> Callable[[SnapshotId], Callable[[], None]]:
        """The same for a tag."""
        return lambda snapshot_id: self.create_tag(name, snapshot_id)

    def create_main(self, snapshot_id: SnapshotId) -> None:
        """Publish a new repository by its branch `main`; raises AlreadyExistsError."""
        self.create_branch(MAIN, snapshot_id)

    def newest_numbers(self) -> dict[str, int]:
        """Numbers of the newest states of all branches."""
        return {branch: tip.sequence for branch, tip in self.tips().items()}

    def entries(self, tip: BranchTip, down_to: int) -> list[BranchTip]:
        """The states of a branch from `tip` down to one of a number, as far as they are kept."""
        states = self.reflog(tip.branch)
        return [each for each in states if down_to <= each.sequence <= tip.sequence]
