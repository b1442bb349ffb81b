"""Adapters: how a program saves and restores, read from adapters/NAME.toml.

    about    one line
    save     command: saves the states of the steps {first} to {last}, files {states}/STEP, in
             {dir}, and after each, when its own format says that it is safe, appends "STEP" and a
             newline to {ack}
    restore  command: prints "restored STEP" and writes that state to {into}; prints "nothing" when
             {dir} holds no checkpoint; or fails with a reason on standard error. What it says on
             standard error although it succeeds counts as a warning
    build    commands that are run once before (optional)
    needs    files that must be there; modules: of Python (optional)
    env      further environment (optional)
    skip     kinds of faults that make no sense for it (optional)

Further words in braces: {here} this directory, {out} a directory for what build makes, {prefix} the
installed Orcheck, {python} the interpreter that has the modules.
"""

import os
import subprocess
import tomllib
from collections.abc import Mapping, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))


class Missing(Exception):
    """The format cannot be tested here; says what is missing."""


class Adapter:
    def __init__(self, path: str, words: Mapping[str, str]) -> None:
        with open(path, "rb") as file:
            self.toml = tomllib.load(file)
        self.name = os.path.splitext(os.path.basename(path))[0]
        unknown = set(self.toml) - {
            "about",
            "save",
            "restore",
            "build",
            "needs",
            "modules",
            "env",
            "skip",
        }
        if unknown or not {"about", "save", "restore"} <= set(self.toml):
            raise SystemExit(
                f"{path}: unknown or missing keys: "
                f"{sorted(unknown) or 'about, save and restore are needed'}"
            )
        self.about, self.skip = self.toml["about"], set(self.toml.get("skip", []))
        self.words = {"here": HERE, **words}
        self.versions: dict[str, str] = {}

    def command(self, name: str, **words: object) -> list[str]:
        return [part.format(**self.words, **words) for part in self.toml[name]]

    def environment(self, temporary: str) -> dict[str, str]:
        return {
            **os.environ,
            "TMPDIR": temporary,
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",
            **self.toml.get("env", {}),
        }

    def prepare(self) -> None:
        """Builds the programs; raises Missing."""
        for need in self.toml.get("needs", []):
            if not os.path.exists(need.format(**self.words)):
                raise Missing(f"{need.format(**self.words)} is not there")
        for module in self.toml.get("modules", []):
            found = subprocess.run(
                [self.words["python"], "-c", f"import {module}; print({module}.__version__)"],
                capture_output=True,
                text=True,
                check=False,
            )
            if found.returncode:
                raise Missing(f"Python module {module} is not installed")
            self.versions[module] = found.stdout.strip()
        os.makedirs(self.words["out"], exist_ok=True)
        for command in self.toml.get("build", []):
            subprocess.run([part.format(**self.words) for part in command], check=True)


def adapters(
    directory: str, words: Mapping[str, str], names: Sequence[str] | None = None
) -> list[Adapter]:
    """The adapters of a directory, in order of name but Orcheck's first; or those named."""
    found = {
        os.path.splitext(name)[0]: os.path.join(directory, name)
        for name in os.listdir(directory)
        if name.endswith(".toml")
    }
    unknown = set(names or []) - set(found)
    if unknown:
        raise SystemExit(
            f"no adapter {', '.join(sorted(unknown))}. Next: choose of {', '.join(sorted(found))}"
        )
    wanted = names or sorted(found, key=lambda name: (not name.startswith("orcheck"), name))
    return [Adapter(found[name], words) for name in wanted]
