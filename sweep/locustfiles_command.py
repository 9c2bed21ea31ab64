"""`ha-sweep locustfiles`: where the locustfiles that come with it are, or a copy of them."""

from __future__ import annotations

from pathlib import Path

import click

from sweep.stdout import say


@click.command(short_help="Print or copy the locustfiles that come with it.")
@click.argument("copy_to", type=click.Path(path_type=Path), required=False)
def locustfiles(copy_to: Path | None) -> int:
    """Print where the locustfiles that come with ha-sweep are, or copy them to COPY_TO to change them there."""
    from sweep import outdir, own_locustfile

    if copy_to is not None:
        say("\n".join(f"copied {copy}" for copy in own_locustfile.copy_ours(copy_to)))
        return 0
    lines = [f"  {file.name:<16} {words}" for file, words in own_locustfile.ours()]
    say("\n".join([f"{outdir.data_folder('locustfiles')}:", *lines]))
    return 0
