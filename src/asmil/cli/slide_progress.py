"""Progress over slides that are being extracted, for the verbs that do so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from asmil.extraction.extract import Done


class SlideProgress:
    """A bar over slides that also counts tiles, as workers report them or, at the latest, slide by slide."""

    def __init__(self, total: int, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        from asmil.console import messages

        self._console = messages(quiet)
        columns = (TextColumn("extracting"), BarColumn(), MofNCompleteColumn(), TextColumn("slides"))
        tiles = TextColumn("{task.fields[tiles]:,} tiles")
        self._progress = Progress(*columns, tiles, TimeElapsedColumn(), console=self._console)
        self._task = self._progress.add_task("", total=total, tiles=0)
        self._reported = 0

    def report(self, n_tiles: Any) -> None:
        """Count tiles that were encoded."""
        self._reported += n_tiles
        self._progress.update(self._task, tiles=self._reported)

    def follow(self, results: Iterable[Done]) -> list[Done]:
        """All results, shown while they come. An interruption ends the command."""
        from asmil.console import say

        seen: list[Done] = []
        with self._progress:
            for done in _until_interrupted(results):
                seen.append(done)
                finished = sum(result.report.n_tiles for result in seen if result.report is not None)
                self._progress.update(self._task, completed=len(seen), tiles=max(finished, self._reported))
                if done.error is not None and self._console.is_terminal:
                    say(self._console, f"failed: {done.error}", style="red")
        return seen


def _until_interrupted(results: Iterable[Done]) -> Iterator[Done]:
    try:
        yield from results
    except KeyboardInterrupt:
        typer.echo("interrupted; finished slides are kept: run the same command again to resume", err=True)
        raise typer.Exit(130) from None
