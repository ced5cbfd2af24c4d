"""The command `webmlc chat`: talk to a language model in the terminal."""

# `option` returns a field, as `dataclasses.field` does

from __future__ import annotations

import hashlib
import signal
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from webmlc.build_options import CommandOption, DeviceName, option, processors
from webmlc.cli.console import console, errors, escape
from webmlc.cli.options import RunOptions
from webmlc.core.errors import InputError, UserError
from webmlc.core.package_files import MANIFEST
from webmlc.core.stage_progress import StageProgress
from webmlc.version import VERSION

if TYPE_CHECKING:
    from webmlc.generate.generate import Usage
    from webmlc.generate.options import GenerateOptions
    from webmlc.host.load import Model

HELP = """/system TEXT  replace the system prompt, and start a new conversation
/reset        start a new conversation
/quit         end (also Ctrl-D)
Ctrl-C        stop an answer"""
"""The commands of the conversation."""


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How the model answers. `None` leaves the choice to the model."""

    max_new_tokens: int = option(
        512, CommandOption("The most tokens of an answer.", least=1, kind=int)
    )
    temperature: float | None = option(
        None,
        CommandOption(
            "Above 1, answers are more random; at 0, not at all.",
            least=0,
            shown="the model's",
            kind=float | None,
        ),
    )
    seed: int | None = option(
        None, CommandOption("Seed of random answers.", shown="random", kind=int | None)
    )
    capacity: int | None = option(
        None,
        CommandOption(
            "Tokens of context to hold in memory.",
            flag="--context",
            least=2,
            shown="grows when needed",
            kind=int | None,
        ),
    )


def chat(
    model: Annotated[
        Path,
        typer.Argument(help="A package of a language model, or a model to build first."),
    ],
    *,
    prompt: Annotated[
        str | None, typer.Option(help="Answer this and end, instead of reading the terminal.")
    ] = None,
    system: Annotated[str, typer.Option(help="The system prompt.")] = "",
    answers: AnswerOptions,
    how: RunOptions,
) -> None:
    """Talk to a language model in the terminal.

    A model that is no package is built into the cache folder ($XDG_CACHE_HOME/webmlc) first.
    """
    from webmlc.host.load import load

    chosen = {name: value for name, value in asdict(answers).items() if value is not None}
    options = cast("GenerateOptions", chosen)
    language_model = load(_package_of(model, how.device), how.device, how.threads)
    try:
        if not language_model.is_language_model:
            raise InputError(f"{model} is no language model: its package holds no tokenizer")
        conversation = Conversation(language_model, options, system)
        if prompt is not None:
            conversation.answer(prompt)
            return
        console.print(f"[bold]{escape(language_model.manifest.name)}[/] (/help lists commands)")
        if not language_model.has_chat_template:
            console.print("It has no chat template: it continues what you write.")
        _converse(conversation)
    finally:
        language_model.dispose()


class Conversation:
    """The messages so far, and the model that answers them."""

    def __init__(self, model: Model, options: GenerateOptions, system: str) -> None:
        self._model = model
        self._options = options
        self.system = system
        self._messages: list[dict[str, str]] = []

    def reset(self) -> None:
        """Start a new conversation with the same system prompt."""
        self._messages.clear()

    def answer(self, text: str) -> Usage:
        """Print the model's answer to a text while it is generated. Ctrl-C stops it."""
        question = {"role": "user", "content": text}
        system = [{"role": "system", "content": self.system}] if self.system else []
        with _interruption() as is_interrupted:
            options: GenerateOptions = {**self._options, "is_interrupted": is_interrupted}
            generation = self._model.generate([*system, *self._messages, question], **options)
            for piece in generation:
                sys.stdout.write(_printable(piece))
                sys.stdout.flush()
        sys.stdout.write("\n")
        self._messages += [question, {"role": "assistant", "content": generation.text}]
        return generation.usage


def _converse(conversation: Conversation) -> None:
    """Read questions and commands from the terminal until its end."""
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        command, _, argument = text.partition(" ")
        match command:
            case "":
                continue
            case "/quit":
                return
            case "/reset":
                conversation.reset()
            case "/system":
                conversation.system = argument.strip()
                conversation.reset()
            case _ if command.startswith("/"):
                console.print(HELP, highlight=False, markup=False)
            case _:
                try:
                    usage = conversation.answer(text)
                except InputError as error:  # the context is full; another conversation may fit
                    errors.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
                else:
                    console.print(f"[dim]{_summary(usage)}[/]", highlight=False, soft_wrap=True)


def _summary(usage: Usage) -> str:
    """The tokens and the speed of an answer."""
    new = usage.prompt_tokens - usage.cached_tokens
    parts = [
        f"{usage.completion_tokens} tokens",
        f"{usage.tokens_per_second:.1f} tokens/s",
        f"{new} of {usage.prompt_tokens} prompt tokens in {usage.prompt_seconds:.2f} s",
        f"context {usage.context_tokens} of {usage.capacity}",
    ]
    if usage.finish_reason not in ("stop", None):
        parts.append(f"ended by: {usage.finish_reason}")
    return " · ".join(parts)


@contextmanager
def _interruption() -> Iterator[Any]:
    """Let Ctrl-C stop an answer after the current token. A second Ctrl-C ends the program."""
    presses = 0

    def count(*_: object) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, count)
    try:
        yield lambda: presses > 0
    finally:
        signal.signal(signal.SIGINT, previous)


def _printable(text: str) -> str:
    """The text without control characters: an answer must not steer the terminal."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")


def _package_of(model: Path, device: DeviceName) -> Path:
    """The folder of a package. A model that was not built before is built into the cache folder."""
    if model.is_dir() and (model / MANIFEST).is_file():
        return model
    from webmlc.core.disk_cache import compiler_key, user_folder
    from webmlc.frontend.file_kinds import check_path
    from webmlc.pipeline import build

    check_path(model)
    status = model.stat()
    version = compiler_key() or VERSION
    key = (str(model.resolve()), status.st_size, status.st_mtime_ns, version, device)
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
    try:
        cache = user_folder()
    except RuntimeError:
        raise UserError(
            f"{model}: there is no home folder to keep its package in. Build it first, and name "
            f"the package: webmlc build {model} -o build/{model.stem}"
        ) from None
    folder = cache / f"{model.stem}-{digest}"
    if not (folder / MANIFEST).is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with StageProgress(f"Building {model.name}", quiet=False) as advance:
            jobs = processors()
            build(model, folder, device, on_stage=advance, jobs=jobs)
    return folder
