"""The formats of Python, each saved with the care that its documentation recommends.

    formats.py FORMAT save DIR STATES FIRST LAST ACK
    formats.py FORMAT restore DIR INTO

A step is written under a temporary name, synced, renamed, and the directory synced; then it is
acknowledged, and all but the two newest are removed. Restart takes the newest that the format's own
reader accepts. (DCP writes a directory, and its metadata last, by itself.)
"""

import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy

Arrays = dict[str, Any]
# The step and the parts of a state.
Read = tuple[int, list[Any]]

warnings.simplefilter("ignore")
PARTS = 4


class Format(Protocol):
    """How a format writes and reads a step."""

    def write(self, path: str, step: int, arrays: Arrays) -> None: ...

    def read(self, path: str) -> Read: ...


class Npz:
    def write(self, path: str, step: int, arrays: Arrays) -> None:
        with open(path, "wb") as file:
            numpy.savez(file, step=step, **arrays)

    def read(self, path: str) -> Read:
        with numpy.load(path, allow_pickle=False) as found:
            return int(found["step"]), [found[f"u{i}"] for i in range(PARTS)]


class Hdf5:
    """checked: with the Fletcher-32 filter, HDF5's checksum of data."""

    def __init__(self, checked: bool = False) -> None:
        import h5py

        self.h5py, self.checked = h5py, checked

    def write(self, path: str, step: int, arrays: Arrays) -> None:
        with self.h5py.File(path, "w", libver="latest") as file:
            for name, array in arrays.items():
                if self.checked:
                    file.create_dataset(name, data=array, chunks=(8192,), fletcher32=True)
                else:
                    file.create_dataset(name, data=array)
            file.attrs["step"] = step
            file.flush()

    def read(self, path: str) -> Read:
        with self.h5py.File(path, "r") as file:
            return int(file.attrs["step"]), [file[f"u{i}"][()] for i in range(PARTS)]


class SafeTensors:
    def __init__(self) -> None:
        import safetensors
        import safetensors.numpy

        self.open, self.save = safetensors.safe_open, safetensors.numpy.save_file

    def write(self, path: str, step: int, arrays: Arrays) -> None:
        self.save(arrays, path, metadata={"step": str(step)})

    def read(self, path: str) -> Read:
        with self.open(path, framework="numpy") as found:
            return int(found.metadata()["step"]), [found.get_tensor(f"u{i}") for i in range(PARTS)]


class Torch:
    def __init__(self) -> None:
        import torch

        self.torch = torch

    def write(self, path: str, step: int, arrays: Arrays) -> None:
        tensors = {name: self.torch.from_numpy(array.view("i8")) for name, array in arrays.items()}
        with open(path, "wb") as file:
            self.torch.save({"step": step, **tensors}, file)

    def read(self, path: str) -> Read:
        found = self.torch.load(path, weights_only=True)
        return int(found["step"]), [found[f"u{i}"].numpy() for i in range(PARTS)]


class Dcp:
    """torch.distributed.checkpoint, without a process group."""

    directory = True

    def __init__(self) -> None:
        import torch
        import torch.distributed.checkpoint as dcp

        self.torch, self.dcp = torch, dcp

    def write(self, path: str, step: int, arrays: Arrays) -> None:
        tensors = {name: self.torch.from_numpy(array.view("i8")) for name, array in arrays.items()}
        self.dcp.save({"step": self.torch.tensor(step), **tensors}, checkpoint_id=path)

    def read(self, path: str) -> Read:
        known = self.dcp.FileSystemReader(path).read_metadata().state_dict_metadata
        state = {
            name: self.torch.zeros(tuple(about.size), dtype=about.properties.dtype)
            for name, about in known.items()
        }
        try:
            self.dcp.load(state, checkpoint_id=path)
        except (
            self.dcp.api.CheckpointException
        ) as error:  # not an Exception: nobody who falls back would see it
            raise RuntimeError(str(error)) from error
        return int(state["step"]), [state[f"u{i}"].numpy() for i in range(PARTS)]


FORMATS: dict[str, Callable[[], Format]] = {
    "npz": Npz,
    "hdf5": Hdf5,
    "hdf5-checked": lambda: Hdf5(True),
    "safetensors": SafeTensors,
    "torch": Torch,
    "dcp": Dcp,
}


def sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def steps_in(directory: str) -> list[int]:
    found = (re.fullmatch(r"step-(\d+)", name) for name in os.listdir(directory))
    return sorted((int(match[1]) for match in found if match), reverse=True)


def remove(path: str) -> None:
    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def save(form: Format, directory: str, states: str, first: int, last: int, ack: str) -> None:
    whole = getattr(form, "directory", False)
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if not re.fullmatch(r"step-\d+", name) or (
            whole and not os.path.exists(os.path.join(path, ".metadata"))
        ):
            remove(path)  # of a run that was killed, also what the format itself calls temporary
    for step in range(first, last + 1):
        with open(os.path.join(states, str(step)), "rb") as file:
            parts = numpy.split(numpy.frombuffer(bytearray(file.read()), dtype="u8"), PARTS)
        arrays = {f"u{i}": part for i, part in enumerate(parts)}
        path = os.path.join(directory, f"step-{step}")
        if whole:
            form.write(path, step, arrays)
            sync(path)
        else:
            form.write(path + ".tmp", step, arrays)
            sync(path + ".tmp")
            os.rename(path + ".tmp", path)
        sync(directory)
        for old in steps_in(directory)[2:]:
            remove(os.path.join(directory, f"step-{old}"))
        with open(ack, "ab", buffering=0) as file:
            file.write(f"{step}\n".encode())


def restore(form: Format, directory: str, into: str) -> int:
    refused = False
    for step in steps_in(directory):
        path = os.path.join(directory, f"step-{step}")
        if getattr(form, "directory", False) and not os.path.exists(
            os.path.join(path, ".metadata")
        ):
            continue
        try:
            found, parts = form.read(path)
            data = b"".join(numpy.ascontiguousarray(part).tobytes() for part in parts)
        except Exception as error:  # whatever the format's reader raises
            print(
                f"{path} cannot be read: {type(error).__name__}: {error}".splitlines()[0],
                file=sys.stderr,
            )
            refused = True
            continue
        with open(into, "wb") as file:
            file.write(data)
        print(f"restored {found}")
        return 0
    if refused:
        return 1
    print("nothing")
    return 0


def main() -> None:
    form = FORMATS[sys.argv[1]]()
    if sys.argv[2] == "save":
        directory, states, first, last, ack = sys.argv[3:]
        save(form, directory, states, int(first), int(last), ack)
    else:
        sys.exit(restore(form, *sys.argv[3:]))


if __name__ == "__main__":
    main()
