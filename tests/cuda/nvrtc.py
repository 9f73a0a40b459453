"""NVRTC from its PyPI package (nvidia-cuda-nvrtc), by ctypes: compiles without a GPU, a driver or a toolkit."""

from __future__ import annotations

import ctypes
import re
from importlib.metadata import PackageNotFoundError, files
from typing import NamedTuple

from dufs_core.kernels import cuda

PACKAGE = "nvidia-cuda-nvrtc"
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
# What dufs_core.kernels.cuda asks for, and what CuPy adds.
OPTIONS = (*cuda.OPTIONS, "-ftz=true", "--ptxas-options=-v")


class Resources(NamedTuple):
    """What the assembler says of one kernel."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


def library() -> ctypes.CDLL | None:
    """The NVRTC library of the package; None where it is not installed."""
    try:
        names = [file for file in files(PACKAGE) or () if re.fullmatch(r"libnvrtc\.so\.\d+", file.name)]
    except PackageNotFoundError:
        return None
    loaded = ctypes.CDLL(str(names[0].locate())) if names else None
    if loaded is not None:
        loaded.nvrtcGetErrorString.restype = ctypes.c_char_p
    return loaded


def compile_for(nvrtc: ctypes.CDLL, file: str, architecture: str, text: str | None = None) -> dict[str, Resources]:
    """Every kernel of a file for both element types: its resources by name. Raises RuntimeError on any warning."""
    program = ctypes.c_void_p()
    text = cuda.source(file) if text is None else text
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), file.encode(), 0, None, None)
    names = sorted({name for dtype in cuda.ELEMENT for name in cuda.instances(file, dtype)})
    for name in names:
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={architecture}")]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, buffer)
    log = buffer.value.decode()
    if code or re.search(r"\b(warning|error)\b", log, re.IGNORECASE):
        raise RuntimeError(f"{file} for {architecture}: {nvrtc.nvrtcGetErrorString(code).decode()}\n{log}")
    lowered = {}
    for name in names:
        text_pointer = ctypes.c_char_p()
        nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(text_pointer))
        lowered[text_pointer.value.decode()] = name
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    # One paragraph for each kernel. Functions that it calls (division, say) have lines of their own after its first.
    found = {}
    for paragraph in log.split("Compiling entry function '")[1:]:
        symbol = paragraph.split("'")[0]
        stacks = [int(v) for v in re.findall(r"(\d+) bytes stack frame", paragraph)]
        spills = [int(v) for v in re.findall(r"(\d+) bytes spill", paragraph)]
        registers = re.search(r"Used (\d+) registers", paragraph)
        shared = re.search(r"(\d+) bytes smem", paragraph)
        found[lowered[symbol]] = Resources(int(registers[1]), int(shared[1]) if shared else 0, max(stacks), sum(spills))
    if set(found) != set(names):
        raise RuntimeError(f"{file} for {architecture}: no resources for {sorted(set(names) - set(found))}")
    return found


def table(nvrtc: ctypes.CDLL) -> dict[str, dict[str, dict[str, int]]]:
    """Resources of every kernel, by kernel and architecture."""
    result: dict[str, dict[str, dict[str, int]]] = {}
    for file in cuda.KERNELS:
        for architecture in ARCHITECTURES:
            for name, resources in compile_for(nvrtc, file, architecture).items():
                result.setdefault(f"{file}: {name}", {})[architecture] = resources._asdict()
    return dict(sorted(result.items()))
