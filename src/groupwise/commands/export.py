"""Export of a run's policy: a model folder with its card, which a hub takes."""

import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from groupwise.commands.build.policy import Note
from groupwise.commands.build.policy import export as export_policy
from groupwise.commands.model_card import card_of
from groupwise.core.errors import RunError, UsageError, brief, one_line, shortened
from groupwise.core.files.json_text import writable

#: The card of a folder, and its name where the model itself has brought a README.md.
CARD, OTHER_CARD = "README.md", "GROUPWISE.md"
#: How a hub names a repository.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def export(run: Path, folder: Path, step: int | None, note: Note, push: str = "", api: HfApi | None = None) -> int:
    """Write the policy after `step` (None: the newest checkpoint's) and its card into `folder`; the step.

    push  the repository of a hub that the folder is sent to, OWNER/NAME; "" is none
    Raises UsageError if the folder exists, there is no such policy or no repository can have the name; RunError if the
    hub does not take the folder, which stays.
    """
    if push and not REPOSITORY.fullmatch(push):
        raise UsageError(f"--push {brief(push)}: expected OWNER/NAME, such as my-name/my-model")
    done = export_policy(run, folder, step, note, finish=partial(_add_card, run=run, name=push or folder.name))
    if push:
        note(f"{folder} is sent to {_sent(folder, push, api or HfApi(), note)}")
    return done


def _add_card(place: Path, step: int, run: Path, name: str) -> None:
    """Write the card. A README.md of the model itself stays as it is."""
    path = place / (OTHER_CARD if (place / CARD).exists() else CARD)
    path.write_text(writable(card_of(run, step, name)), encoding="utf-8")  # a path may hold bytes that are no text


def _sent(folder: Path, repository: str, api: HfApi, note: Note) -> str:
    """Upload a folder -> the address of the repository, private if it is new. A README.md that is there stays."""
    try:
        address = str(api.create_repo(repository, private=True, exist_ok=True))
        own = api.file_exists(repository, CARD)
        if own:
            note(f"{CARD} of {repository} stays as it is; the new card is {folder / CARD}")
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message="Policy trained with groupwise",
            ignore_patterns=[CARD] if own else None,
        )
    except Exception as error:  # no network, no login, no right, no such owner: the folder is whole, whatever it was
        raise RunError(
            f"{folder} is written and was not sent to {repository} at {api.endpoint}: "
            f"{shortened(_words(error))}; send it with: hf upload {repository} {shlex.quote(str(folder))} "
            f"(which overwrites a {CARD} there)"
        ) from None
    return address


def _words(error: Any) -> str:
    """Say an error of the hub, with what to do where it knows no one or refuses."""
    advice = {401: "log in with: hf auth login. ", 403: "the token has no right to write there. "}
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return f"{advice.get(status, '')}{type(error).__name__}: {one_line(error)}"
